"""Euler's method."""

from torch import Tensor

from tmatch.solver.base import FixedStep, Velocity
from tmatch.tensors import State


class Euler(FixedStep):
    """y' = y + ds u_s(y)."""

    order = 1
    evaluations = 1

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        return y + (s_next - s) * velocity(s, y)
