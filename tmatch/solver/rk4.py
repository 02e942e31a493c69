"""The classical Runge-Kutta method."""

from torch import Tensor

from tmatch.solver.base import FixedStep, Velocity
from tmatch.tensors import State


class RK4(FixedStep):
    """y' = y + ds/6 (k_1 + 2 k_2 + 2 k_3 + k_4)."""

    order = 4
    evaluations = 4

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        ds = s_next - s
        k_1 = velocity(s, y)
        k_2 = velocity(s + ds / 2, y + ds / 2 * k_1)
        k_3 = velocity(s + ds / 2, y + ds / 2 * k_2)
        k_4 = velocity(s_next, y + ds * k_3)
        return y + ds / 6 * (k_1 + 2 * k_2 + 2 * k_3 + k_4)
