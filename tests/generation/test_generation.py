import io
import sys

import pytest
import torch
from laws import SHAPE, condition, small_model
from rich.console import Console
from rich.progress import Progress

import tmatch as tm


def test_evaluations_are_counted_per_image() -> None:
    model = small_model("dtm")
    for solver, stages in ((tm.Euler(3), 1), (tm.RK4(3), 4)):
        for size in (1, 2, 5):
            result = tm.generate(
                model, SHAPE, range(5), condition(5), steps=6, params=tm.SamplingParams(solver), batch_size=size
            )
            assert (result.evaluations.backbone, result.evaluations.head) == (6, 6 * 3 * stages)
            assert result.seconds > 0


@pytest.mark.parametrize(("name", "head"), [("fm", 0), ("dtm", 12)])
def test_both_branches_of_guidance_are_one_evaluation(name: str, head: int) -> None:
    params = tm.SamplingParams(tm.Euler(2), tm.ClassifierFreeGuidance(condition(1, seed=9), 3.0))
    result = tm.generate(small_model(name), SHAPE, [0], condition(1), steps=6, params=params)
    assert (result.evaluations.backbone, result.evaluations.head) == (6, head)


def test_counting_leaves_no_hook_behind() -> None:
    model = small_model("dtm")
    tm.generate(model, SHAPE, [0], condition(1), steps=1)
    assert not model.kernel.backbone._forward_hooks
    assert not model.kernel.head._forward_hooks


@pytest.mark.parametrize("batch_size", [2, 5])
def test_the_path_is_kept_on_request(batch_size: int) -> None:
    model, given = small_model("dtm"), condition(5)
    result = tm.generate(model, SHAPE, range(5), given, steps=4, keep_path=True, batch_size=batch_size)
    assert [snapshot.t for snapshot in result.path] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [snapshot.kind for snapshot in result.path] == ["start"] + ["transition"] * 4
    assert torch.equal(result.path[0].x_t, tm.RandomStreams(range(5)).normal(*SHAPE))
    assert torch.equal(result.path[-1].x_t, result.x)
    assert all(snapshot.x_t.shape == (5, *SHAPE) for snapshot in result.path)
    assert tm.generate(model, SHAPE, [0], given[:1], steps=4).path == []


def test_the_last_denoising_estimate_is_the_sample() -> None:
    """x_t + (1 - t) y at the last step is the result of that step."""
    result = tm.generate(small_model("dtm"), SHAPE, [0, 1], condition(2), steps=4, keep_path=True)
    torch.testing.assert_close(result.path[-1].estimate, result.x)
    x_t = result.path[1].x_t
    y = (result.path[2].x_t - x_t) / 0.25
    torch.testing.assert_close(result.path[2].estimate, x_t + 0.75 * y, atol=1e-5, rtol=1e-5)


def test_the_callback_sees_every_state() -> None:
    seen: list[float] = []
    tm.generate(small_model("fm"), SHAPE, [0], condition(1), steps=2, callback=lambda snapshot: seen.append(snapshot.t))
    assert seen == [0.0, 0.5, 1.0]


def test_the_progress_bar_counts_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []

    class Listening(Progress):
        def __init__(self, console: Console, **options: bool) -> None:
            assert console.stderr, "stdout is for results"
            super().__init__(console=Console(file=io.StringIO()), **options)
            bars.append(self)

    monkeypatch.setattr(sys.modules["tmatch.generation.generate"], "Progress", Listening)
    tm.generate(
        small_model("fm"), SHAPE, range(5), condition(5),
        steps=10, sampler=tm.RestartSampler(), batch_size=2, progress=True,
    )  # fmt: skip
    (task,) = bars[0].tasks
    assert task.completed == task.total == 3 * 24


def test_one_condition_serves_every_seed() -> None:
    model, given = small_model("fm"), condition(1)
    shared = tm.generate(model, SHAPE, [3, 4], given, steps=2).x
    each = tm.generate(model, SHAPE, [3, 4], tm.Condition.cat([given, given]), steps=2).x
    assert torch.equal(shared, each)


class SmoothHead(tm.Head):
    """A velocity without the high-frequency time features that would need a thousand solver steps."""

    channels = SHAPE[-1]

    def prepare(self, h: torch.Tensor, t: torch.Tensor, cache: object = None) -> torch.Tensor:
        return h[..., : self.channels]

    def forward(
        self, y_s: torch.Tensor, s: torch.Tensor, context: torch.Tensor, r: torch.Tensor | None = None
    ) -> torch.Tensor:
        return (context - y_s) * (1 + torch.sin(3 * s))


def test_adaptive_solvers_sample_to_their_tolerance() -> None:
    model, given = small_model("dtm"), condition(3)
    model.kernel = tm.ParallelFlow(model.kernel.backbone, tm.Flow(SmoothHead()))
    fine = tm.generate(model, SHAPE, range(3), given, steps=2, params=tm.SamplingParams(tm.RK4(64))).x
    adaptive = tm.SamplingParams(tm.Adaptive(rtol=1e-6, atol=1e-6))
    together = tm.generate(model, SHAPE, range(3), given, steps=2, params=adaptive)
    alone = tm.generate(model, SHAPE, range(3), given, steps=2, params=adaptive, batch_size=1).x
    torch.testing.assert_close(together.x, fine, atol=1e-4, rtol=0)
    torch.testing.assert_close(together.x, alone, atol=1e-4, rtol=0)
    assert together.evaluations.head > 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"batch_size": 0}, "batch_size must be a positive integer"),
        ({"condition": condition(3)}, "3 conditions for 2 images"),
        ({"condition": None}, "needs a condition"),
        ({"condition": condition(2, width=5)}, "width 8; got 5"),
        ({"steps": 0}, "must be a positive integer"),
        ({"seeds": 4}, r"pass range\(4\)"),
        ({"seeds": torch.Generator()}, "no torch.Generator is needed"),
        ({"seeds": []}, "pass one seed per image"),
        ({"steps": [0, 0.5]}, "must end at t = 1"),
    ],
)
def test_invalid_requests_are_rejected(bad: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tm.generate(small_model("dtm"), SHAPE, **{"seeds": [0, 1], "condition": condition(2), **bad})
