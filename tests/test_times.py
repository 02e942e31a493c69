import pytest
import torch

from tmatch import Continuous, Grid, LogitNormal, RandomStreams


def test_the_papers_grids() -> None:
    assert Grid.uniform(4).points == (0, 0.25, 0.5, 0.75, 1)
    assert Grid.exponential(3).points == (0, 0.5, 0.75, 1)
    assert Grid.exponential(1).points == (0, 1)


def test_training_visits_every_time_but_the_last_equally() -> None:
    grid = Grid((0, 0.1, 0.5, 1))
    t, t_next = grid.sample(RandomStreams(range(30_000)))
    values, counts = t.unique(return_counts=True)
    assert values.tolist() == pytest.approx([0, 0.1, 0.5])
    assert (counts - 10_000).abs().max() < 5 * (30_000 * 2 / 9) ** 0.5
    following = dict(zip([0.0, 0.1, 0.5], [0.1, 0.5, 1.0], strict=True))
    assert all(following[round(a, 3)] == pytest.approx(b) for a, b in zip(t.tolist(), t_next.tolist(), strict=True))


def test_continuous_times_fill_the_interval() -> None:
    t, t_next = Continuous().sample(RandomStreams(range(20_000)))
    assert torch.equal(t, t_next)
    assert abs(t.mean() - 0.5) < 5 * (1 / 12 / 20_000) ** 0.5
    bell, _ = Continuous(LogitNormal(0.0, 1.0)).sample(RandomStreams(range(20_000)))
    assert abs(bell.logit().mean()) < 5 / 20_000**0.5
    assert abs(bell.logit().std() - 1) < 0.03


@pytest.mark.parametrize("steps", [1, 5, 16, 32])
def test_fewer_steps_stay_on_the_trained_grid(steps: int) -> None:
    grid = Grid.uniform(32)
    chosen = grid.grid(steps)
    assert len(chosen) == steps + 1
    assert set(chosen.tolist()) <= set(grid.points)
    assert (chosen[0], chosen[-1]) == (0, 1)


def test_a_list_of_times_is_used_unchanged() -> None:
    assert Continuous().grid([0, 0.3, 1]).tolist() == [0, 0.3, 1]
    assert Grid.uniform(4).grid([0.25, 0.75, 1]).tolist() == [0.25, 0.75, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Grid.uniform(32).grid(33), "at most 32 steps"),
        (lambda: Grid.uniform(4).grid([0, 0.3, 1]), "not trained at t = \\[0.3\\]"),
        (lambda: Continuous().grid(0), "must be a positive integer"),
        (lambda: Continuous().grid(True), "must be a positive integer"),
        (lambda: Continuous().grid([0, 0.7, 0.3, 1]), "increasing numbers"),
        (lambda: Continuous().grid([0, float("nan"), 1]), "increasing numbers"),
        (lambda: Grid((0.1, 1)), "must start at 0 and end at 1"),
    ],
)
def test_invalid_times_are_rejected(make, words: str) -> None:  # noqa: ANN001
    with pytest.raises(ValueError, match=words):
        make()
