"""The midpoint method."""

from torch import Tensor

from tmatch.solver.base import FixedStep, Velocity
from tmatch.tensors import State


class Midpoint(FixedStep):
    """y' = y + ds u_{s + ds/2}(y + ds/2 u_s(y))."""

    order = 2
    evaluations = 2

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        half = (s_next - s) / 2
        return y + (s_next - s) * velocity(s + half, y + half * velocity(s, y))
