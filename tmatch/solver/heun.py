"""Heun's method."""

from torch import Tensor

from tmatch.solver.base import FixedStep, Velocity
from tmatch.tensors import State


class Heun(FixedStep):
    """y' = y + ds/2 (k_1 + k_2), k_1 = u_s(y), k_2 = u_{s + ds}(y + ds k_1)."""

    order = 2
    evaluations = 2

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        ds = s_next - s
        k_1 = velocity(s, y)
        k_2 = velocity(s_next, y + ds * k_1)
        return y + ds / 2 * (k_1 + k_2)
