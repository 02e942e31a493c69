"""Adaptive solvers of torchdiffeq."""

from dataclasses import dataclass

import torch

from tmatch.extras import needs_extra
from tmatch.solver.base import Solver, Velocity
from tmatch.tensors import State


@dataclass(frozen=True)
class Adaptive(Solver):
    """Step sizes chosen to meet the tolerances.

    The batch shares one step size, so an image depends on its batch within the tolerance; with fixed-step solvers it
    does not.
    """

    method: str = "dopri5"
    rtol: float = 1e-4
    atol: float = 1e-4

    def solve(self, velocity: Velocity, y: State) -> State:
        with needs_extra("An adaptive solver", "ode"):
            from torchdiffeq import odeint
        span = torch.tensor([0.0, 1.0], device=y.device, dtype=y.dtype)
        return odeint(velocity, y, span, method=self.method, rtol=self.rtol, atol=self.atol)[-1]
