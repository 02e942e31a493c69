"""Exponential multistep methods, which are exact while E[X_T | y_s] is constant: DPM-Solver++ and UniPC.

On the linear path y_s = (1 - s) y_0 + s X_T, a velocity u determines the data E[X_T | y_s] = y_s + (1 - s) u. Between
two times it varies less than the velocity, and over lambda = log(s / (1 - s)) the rest of the path is known.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from tmatch.solver.base import FixedStep, Step, Velocity
from tmatch.tensors import State


def log_snr(s: float) -> float:
    """lambda = log(s / (1 - s)), infinite at both ends."""
    if s in (0.0, 1.0):
        return math.copysign(math.inf, s - 0.5)
    return math.log(s / (1 - s))


def move(y: State, data: State, s: float, s_next: float) -> State:
    """y at s', from y at s, while E[X_T | y_s] is `data`: the noise of y stays, and shrinks from 1 - s to 1 - s'."""
    kept = (1 - s_next) / (1 - s)
    return kept * y + (s_next - kept * s) * data


@dataclass(frozen=True)
class Past:
    """The start of a step: time, state and data, and the slope of the data over lambda in the `gap` before it.

    `end` is the state that the step has led to.
    """

    s: float
    y: State
    data: State
    slope: State | float = 0.0
    gap: float = math.inf
    end: State | float = 0.0


class DPMSolver2M(FixedStep):
    """DPM-Solver++(2M) (Lu et al., 2022): a step with the data in its middle, extrapolated over lambda.

    From noise to data, the first two steps and the last, where lambda is infinite, are of first order.
    """

    order, evaluations = 2, 1

    def stepper(self) -> Step:
        past: list[Past] = []

        def step(velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
            now, end = float(s), float(s_next)
            start = self.start(now, y, y + (1 - now) * velocity(s, y), past.pop() if past else None)
            h = log_snr(end) - log_snr(now)
            middle = start.data + h / 2 * start.slope if math.isfinite(h) else start.data
            y_next = move(start.y, middle, now, end)
            past.append(replace(start, end=y_next))
            return y_next

        return step

    def start(self, s: float, y: State, data: State, past: Past | None) -> Past:
        """The start of the next step, from the start of the last one and from what it has led to."""
        if past is None or math.isinf(h := log_snr(s) - log_snr(past.s)):
            return Past(s, y, data)
        return Past(s, y, data, (data - past.data) / h, h)


class UniPC(DPMSolver2M):
    """UniPC of order 2 (Zhao et al., 2023): DPM-Solver++(2M), and its steps are taken again once their ends are known.

    The corrected step integrates the parabola through the data before the step, at its start and at its end; the data
    at the end are those of the predicted state, so there is no other evaluation. Between noise and data, where all
    three exist, the order is 3. What others have added to the predicted state, such as a residual, stays.
    """

    order = 3

    def start(self, s: float, y: State, data: State, past: Past | None) -> Past:
        found = super().start(s, y, data, past)
        if past is None or math.isinf(found.gap):
            return found
        h, slope = found.gap, found.slope
        curvature = (slope - past.slope) / (h + past.gap)
        constant = -math.expm1(-h)  # integrals of e^{u - h} times 1, u and u (u - h) over the step
        linear = h - constant
        integral = constant * past.data + linear * slope + (h**2 - (2 + h) * linear) * curvature
        return replace(found, y=y + ((1 - s) / (1 - past.s) * past.y + s * integral - past.end))
