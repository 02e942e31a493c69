import pytest
import torch
from laws import PROCESSES, Oracle

from tmatch import Continuous, Grid, RandomStreams, TransitionMatching
from tmatch.parametrization import PARAMETRIZATIONS, Parametrization
from tmatch.process import Process

GRID = Grid((0, 0.2, 0.5, 0.9, 1))


def allowed(parametrization: Parametrization, process: Process) -> bool:
    try:
        parametrization.check(process, GRID)
    except ValueError:
        return False
    return True


PAIRS = pytest.mark.parametrize(
    ("y", "q"), [(y, q) for y in PARAMETRIZATIONS for q in PROCESSES if allowed(PARAMETRIZATIONS[y], PROCESSES[q])]
)


def rng(n: int = 50) -> RandomStreams:
    return RandomStreams(range(n), dtype=torch.float64)


def data(n: int = 50) -> torch.Tensor:
    """With seeds of its own: the first numbers of `rng` are the noise, and a difference of 0 would hide its sign."""
    return RandomStreams(range(500, 500 + n), dtype=torch.float64).normal(2, 3)


@PAIRS
def test_the_target_gives_the_next_state_and_the_data(y: str, q: str) -> None:
    parametrization, process = PARAMETRIZATIONS[y], PROCESSES[q]
    x_T = data()
    for t, t_next in [(0.0, 0.2), (0.2, 0.5), (0.9, 1.0)]:
        times = torch.full((50,), t).double(), torch.full((50,), t_next).double()
        transition = process.sample(x_T, *times, rng())
        replay = rng()
        replay.normal(2, 3)  # Z_t came first
        x_t, target = transition.x_t, parametrization.target(transition)
        x_next = parametrization.advance(process, x_t, target, *times, replay)
        torch.testing.assert_close(x_next, transition.x_next, atol=1e-9, rtol=1e-9)
        estimate = parametrization.estimate(process, x_t, target, times[0])
        assert (estimate is None) == (y == "next-state"), "the only Y that does not determine X_T"
        assert estimate is None or torch.allclose(estimate, x_T, atol=1e-9, rtol=1e-9)


@PAIRS
def test_a_perfect_kernel_regenerates_the_data(y: str, q: str) -> None:
    parametrization, process = PARAMETRIZATIONS[y], PROCESSES[q]
    x_T = data(8)
    model = TransitionMatching(process, parametrization, Oracle(process, parametrization, x_T), GRID)
    torch.testing.assert_close(model.sample((2, 3), rng(8)), x_T, atol=1e-8, rtol=1e-8)


def test_the_next_state_needs_the_training_grid() -> None:
    process, parametrization = PROCESSES["independent-linear"], PARAMETRIZATIONS["next-state"]
    kernel = Oracle(process, parametrization, rng(1).normal(1, 1))
    with pytest.raises(ValueError, match="train it on a Grid"):
        TransitionMatching(process, parametrization, kernel, Continuous())
    model = TransitionMatching(process, parametrization, kernel, GRID)
    for steps in (2, [0, 0.2, 1], [0, 0.3, 0.5, 0.9, 1]):
        with pytest.raises(ValueError, match="takes the 4 steps of its training"):
            model.sample((1, 1), rng(1), steps=steps)


def test_noise_prediction_needs_a_positive_alpha() -> None:
    for name in ("linear", "gaussian-cosine"):
        with pytest.raises(ValueError, match="X_0 does not determine X_T; use VariancePreserving"):
            PARAMETRIZATIONS["noise-state"].check(PROCESSES[name], GRID)
