"""Runge-Kutta methods of order 1, 2 and 4."""

from torch import Tensor

from tmatch.solver.base import OneStep, Velocity
from tmatch.tensors import State


class Euler(OneStep):
    """y' = y + ds u_s(y)."""

    order, evaluations = 1, 1

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        return y + (s_next - s) * velocity(s, y)


class Midpoint(OneStep):
    """y' = y + ds u_{s + ds/2}(y + ds/2 u_s(y))."""

    order, evaluations = 2, 2

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        half = (s_next - s) / 2
        return y + (s_next - s) * velocity(s + half, y + half * velocity(s, y))


class Heun(OneStep):
    """y' = y + ds/2 (k_1 + k_2), k_1 = u_s(y), k_2 = u_{s + ds}(y + ds k_1)."""

    order, evaluations = 2, 2

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        ds = s_next - s
        k_1 = velocity(s, y)
        k_2 = velocity(s_next, y + ds * k_1)
        return y + ds / 2 * (k_1 + k_2)


class RK4(OneStep):
    """y' = y + ds/6 (k_1 + 2 k_2 + 2 k_3 + k_4)."""

    order, evaluations = 4, 4

    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        ds = s_next - s
        k_1 = velocity(s, y)
        k_2 = velocity(s + ds / 2, y + ds / 2 * k_1)
        k_3 = velocity(s + ds / 2, y + ds / 2 * k_2)
        k_4 = velocity(s_next, y + ds * k_3)
        return y + ds / 6 * (k_1 + 2 * k_2 + 2 * k_3 + k_4)
