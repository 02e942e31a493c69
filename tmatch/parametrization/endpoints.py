"""Y that determine X_T: the difference, the data and the noise."""

import torch
from torch import Tensor

from tmatch.parametrization.base import Parametrization
from tmatch.process import Process, Transition
from tmatch.tensors import State
from tmatch.times import Times


class Difference(Parametrization):
    """Y = X_T - X_0 (Eq. 11); on the linear process X_{t'} = X_t + (t' - t) Y (Eq. 12)."""

    symbol = "X_T - X_0"

    def target(self, q: Transition) -> State:
        return q.x_T - q.z_t

    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> tuple[State, State]:
        """X_0 = (X_t - alpha Y) / (sigma + alpha), X_T = X_0 + Y."""
        z_t = (x_t - alpha * y) / (sigma + alpha)
        return z_t, z_t + y


class CleanState(Parametrization):
    """Y = X_T: x-prediction."""

    symbol = "X_T"

    def target(self, q: Transition) -> State:
        return q.x_T

    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> tuple[State, State]:
        """Z_t = (X_t - alpha Y) / sigma; sigma > 0 because no step starts at t = 1."""
        return (x_t - alpha * y) / sigma, y


class NoiseState(Parametrization):
    """Y = X_0: epsilon-prediction."""

    symbol = "X_0"

    def target(self, q: Transition) -> State:
        return q.z_t

    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> tuple[State, State]:
        """X_T = (X_t - sigma Y) / alpha."""
        return y, (x_t - sigma * y) / alpha

    def check(self, process: Process, times: Times) -> None:
        if float(process.schedule.alpha(torch.tensor(0.0, dtype=torch.float64, device="cpu"))) == 0:
            raise ValueError(
                f"The {type(process.schedule).__name__} schedule has alpha_0 = 0, so X_0 does not determine X_T; use "
                "VariancePreserving, where alpha_0 > 0, or predict Difference or CleanState."
            )
