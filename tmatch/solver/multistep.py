"""Multistep methods: a high order with one evaluation per step, since earlier ones are used again."""

from collections import deque

import torch
from torch import Tensor

from tmatch.solver.base import FixedStep, OneStep, Step, Velocity
from tmatch.solver.runge_kutta import Euler, Midpoint
from tmatch.tensors import State


def integration_weights(nodes: Tensor, s: Tensor, s_next: Tensor) -> Tensor:
    """The w with int_s^{s'} p = sum_i w_i p(node_i) for every polynomial p of degree below the number of nodes."""
    powers = torch.arange(len(nodes), dtype=nodes.dtype)
    h = s_next - s
    moments = h ** (powers + 1) / (powers + 1)
    return torch.linalg.solve((nodes - s) ** powers[:, None], moments)


class AdamsBashforth(FixedStep):
    """y' = y + int_s^{s'} p, with p the polynomial through the newest `order` velocities, on any grid."""

    evaluations = 1
    first: type[OneStep]
    """The method of the first step, one order lower; after it, the polynomial has the velocities there are."""

    @property
    def calls(self) -> int:
        return super().calls + self.first.evaluations - 1

    def stepper(self) -> Step:
        nodes: deque[Tensor] = deque(maxlen=self.order)
        velocities: deque[State] = deque(maxlen=self.order)

        def step(velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
            velocities.append(velocity(s, y))
            nodes.append(s.double().cpu())
            if len(nodes) == 1:
                known = velocities[0]
                return self.first().step(lambda at, x: known if at is s else velocity(at, x), y, s, s_next)
            weights = integration_weights(torch.stack(list(nodes)), nodes[-1], s_next.double().cpu())
            for weight, k in zip(weights.tolist(), velocities, strict=True):
                y = y + weight * k
            return y

        return step


class AB2(AdamsBashforth):
    """Adams-Bashforth of order 2: y' = y + h ((1 + r/2) k_n - r/2 k_{n-1}), with r = h / h_{n-1}."""

    order, first = 2, Euler


class AB3(AdamsBashforth):
    """Adams-Bashforth of order 3; its first step takes two evaluations, by the midpoint method."""

    order, first = 3, Midpoint
