"""Head steps that fall over the tokens of a state, or over time."""

from itertools import pairwise

import pytest
import torch
from laws import SHAPE, condition, small_model

import tmatch as tm
from tmatch.kernel.masked import known_counts

N = SHAPE[0] * SHAPE[1]
FIRST, LAST, ITERATIONS = 9, 2, 4
GUIDED = tm.ClassifierFreeGuidance(condition(1, length=1, seed=99), 3.0, rescale=0.7)
IN_TURN = ["ar", "artm-3", "fhtm-3", "mar", "martm-3"]
CASES = [*((name, over) for name in IN_TURN for over in ("tokens", "time")), ("dtm", "time"), ("dtm-mean", "time")]
EACH = pytest.mark.parametrize(("name", "over"), CASES)
STEPS = 5  # of the variants that take any number


def generate(
    name: str,
    schedule: tm.HeadSchedule | None,
    batch_size: int = 64,
    solver: tm.Solver = tm.Euler(FIRST),  # noqa: B008
) -> tm.Generation:
    torch.manual_seed(1)  # the same model each time
    model, steps = small_model(name), STEPS if name.startswith("dtm") else None
    params = tm.SamplingParams(solver, GUIDED, tm.Unmasking(ITERATIONS), head_schedule=schedule)
    return tm.generate(model, SHAPE, range(3), condition(3), steps=steps, params=params, batch_size=batch_size)


def progress(name: str, over: str) -> list[float]:
    """That of each call of the head's solver."""
    row = tm.VARIANTS[name]
    times = row.times.points if isinstance(row.times, tm.Grid) else tuple(k / STEPS for k in range(STEPS + 1))
    if name.startswith("dtm"):
        return list(times[:-1])
    known = [i / N for i in range(N)]
    if name.startswith("mar"):
        known = [before / N for before in known_counts(N, ITERATIONS)[:-1]]
    return [p if over == "tokens" else t + (u - t) * p for t, u in pairwise(times) for p in known]


@EACH
@pytest.mark.parametrize(("solver", "stages"), [(tm.Euler(FIRST), 1), (tm.Heun(FIRST), 2)], ids=str)
def test_the_head_is_evaluated_as_often_as_the_schedule_says(
    name: str, over: str, solver: tm.Solver, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    forward = tm.FlowHead.forward
    monkeypatch.setattr(tm.FlowHead, "forward", lambda *given: (calls.append(1), forward(*given))[1])
    expected = stages * sum(round(FIRST + p * (LAST - FIRST)) for p in progress(name, over))
    found = generate(name, tm.HeadSchedule(LAST, over), solver=solver).evaluations
    assert found.head == len(calls) == expected
    assert found.head < generate(name, None, solver=solver).evaluations.head


@EACH
def test_a_schedule_that_ends_where_it_starts_is_constant_to_the_bit(name: str, over: str) -> None:
    constant = generate(name, None)
    assert torch.equal(generate(name, tm.HeadSchedule(FIRST, over)).x, constant.x)
    assert not torch.equal(generate(name, tm.HeadSchedule(LAST, over)).x, constant.x)


@EACH
def test_an_image_does_not_depend_on_its_batch(name: str, over: str) -> None:
    together, alone = (generate(name, tm.HeadSchedule(LAST, over), size).x for size in (3, 1))
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_the_inner_steps_of_glass_fall_over_time() -> None:
    params = tm.SamplingParams(tm.Euler(FIRST), head_schedule=tm.HeadSchedule(LAST, "time"))
    model, given = small_model("fm"), condition(1)
    found = tm.generate(model, SHAPE, [0], given, steps=STEPS, params=params, sampler=tm.GlassSampler()).evaluations
    assert found.backbone == sum(round(FIRST + p * (LAST - FIRST)) for p in progress("dtm", "time"))


@pytest.mark.parametrize("name", ["ar", "mar"])
def test_with_one_transition_time_is_the_fraction_of_known_tokens(name: str) -> None:
    by_tokens, by_time = (generate(name, tm.HeadSchedule(LAST, over)).x for over in ("tokens", "time"))
    assert torch.equal(by_tokens, by_time)


@pytest.mark.parametrize("last", [1, 5, 64, 100])
def test_steps_go_monotonically_from_the_first_to_the_last(last: int) -> None:
    params = tm.SamplingParams(tm.Heun(64), head_schedule=tm.HeadSchedule(last))
    solvers = [params.at(known / 256, 0.0).solver for known in range(257)]
    assert all(isinstance(solver, tm.Heun) for solver in solvers)
    steps = [len(solver.grid) - 1 for solver in solvers]
    assert (steps[0], steps[-1]) == (64, last)
    assert steps == sorted(steps, reverse=last < 64)
    linear = [64 + (last - 64) * known / 256 for known in range(257)]
    assert max(abs(a - b) for a, b in zip(steps, linear, strict=True)) <= 0.5
    assert len({id(solver) for solver in solvers}) == len(set(steps)), "one solver for each number of steps"
    assert all(params.at(known / 256, 0.0).solver is solver for known, solver in enumerate(solvers))


def test_params_without_a_schedule_are_themselves() -> None:
    params = tm.SamplingParams(tm.Adaptive())
    assert params.at(0.3, 0.6) is params


def test_the_progress_is_over_tokens_or_over_time() -> None:
    for over, steps in (("tokens", 8), ("time", 5)):
        params = tm.SamplingParams(tm.Euler(10), head_schedule=tm.HeadSchedule(2, over))
        assert len(params.at(0.25, 0.6).solver.grid) - 1 == steps


def test_a_grid_of_its_own_is_kept_while_the_steps_are() -> None:
    solver = tm.Euler([0, 0.1, 1])
    assert tm.SamplingParams(solver, head_schedule=tm.HeadSchedule(1)).at(0.0, 0.0).solver is solver


def test_invalid_schedules_are_rejected() -> None:
    with pytest.raises(ValueError, match="last number of head steps must be a positive integer"):
        tm.HeadSchedule(0)
    with pytest.raises(ValueError, match="over tokens or time; got 'space'"):
        tm.HeadSchedule(4, "space")
    with pytest.raises(ValueError, match="needs a solver of a fixed number of steps"):
        tm.SamplingParams(tm.Adaptive(), head_schedule=tm.HeadSchedule(4)).at(0.0, 0.0)
