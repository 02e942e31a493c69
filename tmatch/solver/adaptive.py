"""Adaptive solvers of torchdiffeq."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tmatch.extras import needs_extra
from tmatch.solver.base import Solver, Step, Velocity
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
        return self.step(velocity, y, torch.tensor(0.0), torch.tensor(1.0))

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        """y at s_next, from y at s, in as many steps as the tolerances need."""
        with needs_extra("An adaptive solver", "ode"):
            from torchdiffeq import odeint
        span = torch.stack((s, s_next)).to(y)
        tolerances = {"rtol": self.rtol, "atol": self.atol}
        last = {"step_t": span[1:]}  # or it would step beyond the end and interpolate
        return odeint(velocity, y, span, method=self.method, options=last, **tolerances)[-1]

    def stepper(self) -> Step:
        return self.step
