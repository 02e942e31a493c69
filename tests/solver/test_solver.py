import math
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tmatch import Adaptive, Euler
from tmatch.solver import AB2, AB3, SOLVERS, DPMSolver2M, FixedStep, OneStep, UniPC
from tmatch.solver.multistep import integration_weights

ALL = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


def velocity(s: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.square() * torch.cos(s)  # depends on time, and not linear


def solution(y: torch.Tensor) -> torch.Tensor:
    return 1 / (1 / y - math.sin(1))


def error(solver: type[FixedStep], points: list[float]) -> float:
    """Of steps between 0.1 and 0.9: exponential methods take first-order steps at noise and at data."""
    y, step = torch.tensor([0.3, 0.6, -0.8], dtype=torch.float64), solver(1).stepper()
    grid = 0.1 + 0.8 * torch.tensor(points, dtype=torch.float64)
    expected = 1 / (1 / y - grid[-1].sin() + grid[0].sin())
    for s, s_next in pairwise(grid):
        y = step(velocity, y, s, s_next)
    return (y - expected).abs().max().item()


@ALL
@pytest.mark.parametrize("power", [1, 1.5], ids=["equal", "stretched"])
def test_the_error_decreases_with_the_order(solver: type[FixedStep], power: float) -> None:
    errors = [error(solver, [(i / n) ** power for i in range(n + 1)]) for n in (64, 128, 256)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(solver.order, abs=0.15)


def stretched(steps: int) -> list[float]:
    return [(i / steps) ** 1.5 for i in range(steps + 1)]


@pytest.mark.parametrize("solver", [kind for kind in SOLVERS.values() if issubclass(kind, OneStep)])
@pytest.mark.parametrize("grid", [int, stretched], ids=["equal", "stretched"])
def test_one_step_methods_have_their_order_from_noise_to_data(solver: type[FixedStep], grid) -> None:  # noqa: ANN001
    y = torch.tensor([0.3, 0.6, -0.8], dtype=torch.float64)
    errors = [(solver(grid(n)).solve(velocity, y) - solution(y)).abs().max().item() for n in (32, 64, 128)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(solver.order, abs=0.15)


@ALL
def test_all_solvers_end_at_the_solution(solver: type[FixedStep]) -> None:
    """From noise to data, where exponential methods reach their order up to a logarithm."""
    y = torch.tensor([0.3, 0.6, -0.8], dtype=torch.float64)
    coarse, fine = [(solver(n).solve(velocity, y) - solution(y)).abs().max().item() for n in (64, 256)]
    assert fine < coarse / 2 ** (2 * min(solver.order, 2) - 0.8)


@pytest.mark.parametrize("solver", [AB2, AB3, DPMSolver2M, UniPC])
def test_a_stepper_remembers_only_its_own_solve(solver: type[FixedStep]) -> None:
    one, y = solver(5), torch.tensor([0.3], dtype=torch.float64)
    assert torch.equal(one.solve(velocity, y), one.solve(velocity, y))
    assert not torch.equal(one.solve(velocity, y), Euler(5).solve(velocity, y))


def test_adams_bashforth_has_its_weights() -> None:
    nodes = torch.tensor([0.1, 0.3, 0.4], dtype=torch.float64)
    h, r = 0.2, 0.2 / 0.1
    two = integration_weights(nodes[1:], nodes[2], nodes[2] + h)
    torch.testing.assert_close(two, torch.tensor([-h * r / 2, h * (1 + r / 2)], dtype=torch.float64))
    equal = integration_weights(torch.arange(3.0).double(), torch.tensor(2.0).double(), torch.tensor(3.0).double())
    torch.testing.assert_close(equal, torch.tensor([5, -16, 23], dtype=torch.float64) / 12)


def test_the_first_step_of_ab2_is_that_of_euler() -> None:
    y = torch.tensor([0.3, 0.6, -0.8], dtype=torch.float64)
    assert torch.equal(AB2(1).solve(velocity, y), Euler(1).solve(velocity, y))


@pytest.mark.parametrize("solver", [DPMSolver2M, UniPC])
def test_exponential_methods_are_exact_for_constant_data(solver: type[FixedStep]) -> None:
    """y_s = (1 - s) y_0 + s x: the velocity (x - y_s) / (1 - s) always points at x."""
    x, y = torch.tensor([0.7], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    step, grid = solver(1).stepper(), torch.tensor([0.0, 0.3, 0.35, 0.8, 0.9], dtype=torch.float64)
    state = y
    for s, s_next in pairwise(grid):
        state = step(lambda s, y: (x - y) / (1 - s), state, s, s_next)
        torch.testing.assert_close(state, (1 - s_next) * y + s_next * x)


def test_dpm_solver_takes_the_step_of_its_paper() -> None:
    """Algorithm 2 of DPM-Solver++ (Lu et al., 2022), with sigma = 1 - s and alpha = s."""
    grid = torch.tensor([0.2, 0.5, 0.6], dtype=torch.float64)
    y_0, step = torch.tensor([0.4], dtype=torch.float64), DPMSolver2M(1).stepper()
    sigma, alpha = 1 - grid, grid
    y_1 = step(velocity, y_0, grid[0], grid[1])
    y_2 = step(velocity, y_1, grid[1], grid[2])
    x_0, x_1 = (y + (1 - s) * velocity(s, y) for s, y in ((grid[0], y_0), (grid[1], y_1)))
    h = (alpha / sigma).log().diff()
    torch.testing.assert_close(y_1, sigma[1] / sigma[0] * y_0 - alpha[1] * torch.expm1(-h[0]) * x_0)
    r = h[0] / h[1]
    data = (1 + 1 / (2 * r)) * x_1 - 1 / (2 * r) * x_0
    torch.testing.assert_close(y_2, sigma[2] / sigma[1] * y_1 - alpha[2] * torch.expm1(-h[1]) * data)


def test_unipc_keeps_what_is_added_between_its_steps() -> None:
    y, grid = torch.zeros(1, dtype=torch.float64), torch.linspace(0.1, 0.9, 7).double()
    ends = []
    for kick in (0.0, 1.0):
        state, step = y, UniPC(1).stepper()
        for s, s_next in pairwise(grid):
            state = step(lambda s, y: torch.zeros_like(y), state, s, s_next) + kick
        ends.append(float(state))
    assert ends[0] == 0
    assert ends[1] == pytest.approx(6, rel=0.35)  # the data of each state extrapolate from those before


def test_unipc_corrects_a_step_with_the_parabola_through_its_data() -> None:
    """The corrected state equals the exponential integral, by quadrature, of the interpolated data."""
    grid = torch.tensor([0.2, 0.4, 0.65], dtype=torch.float64)
    y = torch.tensor([0.4], dtype=torch.float64)
    data = [torch.tensor([x], dtype=torch.float64) for x in (0.3, 0.9, 0.1)]
    solver, past, times = UniPC(1), None, (grid / (1 - grid)).log()
    for s, x in zip(grid.tolist(), data, strict=True):
        before, past = past, replace(solver.start(s, y, x, past), end=y)  # each step has led to y
    assert before is not None
    u = torch.linspace(0, 1, 20_001, dtype=torch.float64) * (times[2] - times[1])
    parabola = sum(
        x * math.prod((u + times[1] - times[j]) / (times[i] - times[j]) for j in range(3) if j != i)
        for i, x in enumerate(data)
    )
    integral = torch.trapezoid((u - u[-1]).exp() * parabola, u)
    expected = (1 - grid[2]) / (1 - grid[1]) * before.y + grid[2] * integral
    torch.testing.assert_close(past.y, expected, atol=1e-8, rtol=1e-8)


@ALL
def test_evaluations_match_the_declared_number(solver: type[FixedStep]) -> None:
    calls = []
    solver(7).solve(lambda s, y: calls.append(s) or velocity(s, y), torch.ones(1))
    assert len(calls) == solver(7).calls
    assert solver(8).calls - len(calls) == solver.evaluations
    assert calls[0] == 0
    assert max(calls) <= 1


@ALL
def test_the_dtype_is_that_of_the_state(solver: type[FixedStep]) -> None:
    assert solver(3).solve(velocity, torch.ones(1)).dtype == torch.float32


def test_adaptive_reaches_its_tolerance() -> None:
    y = torch.tensor([0.3, 0.6, -0.8], dtype=torch.float64)
    solved = Adaptive(rtol=1e-8, atol=1e-8).solve(velocity, y)
    torch.testing.assert_close(solved, solution(y), atol=1e-6, rtol=1e-6)


def test_adaptive_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(ImportError, match="pip install 'tmatch\\[ode\\]'"):
        Adaptive().solve(velocity, torch.ones(1))


@pytest.mark.parametrize("steps", [0, -1, 2.5, "4", [0.0], [0.5, 0.1], [0, 2], [0.2, 0.8], [0, 0.5]])
def test_invalid_grids_are_rejected(steps) -> None:  # noqa: ANN001
    with pytest.raises(ValueError, match=r"positive integer|increasing numbers|from s = 0 to s = 1"):
        Euler(steps)
