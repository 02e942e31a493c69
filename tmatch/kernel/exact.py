"""What a mean knows of the joint kernel: the exact velocity of p(Y | X_t), from m(x, t) = E[Y | X_t = x] alone.

Let Y = X_T - X_0 and y_s = (1 - s) B_0 + s Y. Given X_T, both states are Gaussian with independent noise:

    X_t = sigma_t X_0 + alpha_t X_T,    sigma_t y_s + s X_t = (1 - s) sigma_t B_0 + s (sigma_t + alpha_t) X_T.

They are two readings of X_T, whose precisions (alpha / sigma)^2 add: one state of the process at another time, where m
is known (GLASS flows, arXiv 2509.25170).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tmatch.tensors import State, Time, expand_like


@dataclass(frozen=True)
class CombinedReading:
    """X_t and y_s as one state of the linear process, x = (1 - t) Z + t X_T, and E[Y - B_0 | X_t, y_s] given its mean.

    On another schedule it is the state (sigma + alpha) x at the time where alpha / (sigma + alpha) = t.
    """

    x: State
    t: Time
    gain: Tensor
    offset: State

    def velocity(self, m: State) -> State:
        """E[Y - B_0 | X_t, y_s] = gain m + offset, for m = E[X_T - Z | x]."""
        return self.gain * m + self.offset


def combined_reading(x_t: State, y_s: State, sigma: Tensor, alpha: Tensor, s: Time) -> CombinedReading:
    """The two readings as one; nothing is divided by sigma_t or by 1 - s, so that both may be 0.

    With a^2 = alpha^2 (1 - s)^2 + s^2 (sigma + alpha)^2 and b = (1 - s) sigma, the reading is b Z + a X_T.
    """
    known, learned = alpha * (1 - s), (sigma + alpha) * s
    a = torch.hypot(known, learned)
    total = a + (1 - s) * sigma
    c = torch.where(a > 0, known / a, 0.0)  # at alpha = s = 0 neither knows anything, and y_s is as good as any noise
    d = torch.where(a > 0, learned / a, 1.0)
    weights = (c * (1 - s) + d * s, d * sigma, sigma + alpha, c - 1, (sigma + alpha) * d - alpha * c - sigma)
    of_x, of_y, gain, drift_of_x, drift_of_y = (expand_like(w / total, x_t).to(x_t.dtype) for w in weights)
    return CombinedReading(of_x * x_t + of_y * y_s, a / total, gain, drift_of_x * x_t + drift_of_y * y_s)


def exact_velocity(mean: Callable[[State, Time], State], x_t: State, t: Time, y_s: State, s: Time) -> State:
    """E[Y - B_0 | X_t, y_s] of the linear process, from one evaluation of the mean m(x, t) at another state."""
    reading = combined_reading(x_t, y_s, 1 - t, t, s)
    return reading.velocity(mean(reading.x, reading.t))
