import pytest
import torch

import tmatch as tm
from tmatch.data import TOYS, InMemory
from tmatch.data.batches import Captioned


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_density_is_centred_and_a_point_depends_on_its_seed_alone(name: str) -> None:
    x = TOYS[name](tm.RandomStreams(range(5000)))
    assert x.shape == (5000, 2)
    assert x.abs().max() < 3
    assert (x.mean(0).abs() < 0.25).all()
    assert torch.equal(TOYS[name](tm.RandomStreams([17])), x[17:18])


def test_the_checkerboard_covers_only_dark_squares_and_corners_are_correlated() -> None:
    x = TOYS["checkerboard"](tm.RandomStreams(range(4000)))
    assert ((x.floor().sum(1) % 2) == 0).all()
    assert torch.corrcoef(TOYS["corners"](tm.RandomStreams(range(20_000))).T)[0, 1] > 0.9


def test_every_sample_occurs_once_per_epoch() -> None:
    data = InMemory(torch.arange(10.0)[:, None, None], seed=3)
    order = torch.cat([data.indices(step, 4) for step in range(5)])  # two epochs; the third batch spans both
    assert sorted(order[:10].tolist()) == sorted(order[10:].tolist()) == list(range(10))
    assert order[:10].tolist() != order[10:].tolist()
    assert order[:10].tolist() != InMemory(data.x, seed=4).indices(0, 10).tolist()
    big = data.indices(0, 25)
    assert sorted(big[:10].tolist()) == list(range(10))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    x, captions = tm.RandomStreams(range(30)).normal(2, 3), [str(k) for k in range(30)]
    first, second = (Captioned(InMemory(x), captions) for _ in range(2))
    second.batch(0, 7, 0, 1)
    (a, c), (b, d) = first.batch(5, 8, 0, 1), second.batch(5, 8, 0, 1)
    assert torch.equal(a, b)
    assert c == d
    index = first.data.indices(5, 8)
    assert torch.equal(a, x[index])
    assert c == [captions[k] for k in index.tolist()]


@pytest.mark.parametrize("parts", [1, 3])
def test_every_state_comes_with_its_caption(parts: int) -> None:
    data = Captioned(InMemory(torch.arange(10.0)[:, None, None], seed=3), [f"number {k}" for k in range(10)])
    for step in range(4):
        batches = [data.batch(step, 6, part, parts) for part in range(parts)]
        for x, captions in batches:
            assert captions == [f"number {k:g}" for k in x.flatten().tolist()]
        assert torch.equal(torch.cat([x for x, _ in batches]), data.batch(step, 6, 0, 1)[0])


def test_invalid_data_is_rejected() -> None:
    with pytest.raises(ValueError, match="shape \\(samples, \\*grid, channels\\)"):
        InMemory(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="5 states, 3 captions"):
        Captioned(InMemory(torch.zeros(5, 2, 1)), ["a", "b", "c"])
    with pytest.raises(ValueError, match="the data contains non-finite"):
        InMemory(torch.full((5, 2, 1), torch.inf))
