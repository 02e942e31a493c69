import math
import sys
from itertools import pairwise

import pytest
import torch

from tmatch import Adaptive, Euler
from tmatch.solver import SOLVERS, FixedStep

ALL = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


def velocity(s: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.square() * torch.cos(s)  # depends on time, and not linear


def solution(y: torch.Tensor) -> torch.Tensor:
    return 1 / (1 / y - math.sin(1))


def stretched(steps: int) -> list[float]:
    return [(i / steps) ** 1.5 for i in range(steps + 1)]


@ALL
@pytest.mark.parametrize("grid", [int, stretched], ids=["equal", "stretched"])
def test_the_error_decreases_with_the_order(solver: type[FixedStep], grid) -> None:  # noqa: ANN001
    y = torch.tensor([0.3, 0.6, -0.8], dtype=torch.float64)
    errors = [(solver(grid(n)).solve(velocity, y) - solution(y)).abs().max().item() for n in (32, 64, 128)]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(solver.order, abs=0.15)


@ALL
def test_evaluations_match_the_declared_number(solver: type[FixedStep]) -> None:
    calls = []
    solver(7).solve(lambda s, y: calls.append(s) or velocity(s, y), torch.ones(1))
    assert len(calls) == 7 * solver.evaluations
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
