"""Y = X_T - X_0, the difference between data and noise."""

from torch import Tensor

from tmatch.parametrization.base import Parametrization
from tmatch.process import Transition
from tmatch.tensors import State


class Difference(Parametrization):
    """Y = X_T - X_0 (Eq. 11); on the linear process X_{t'} = X_t + (t' - t) Y (Eq. 12)."""

    symbol = "X_T - X_0"

    def target(self, q: Transition) -> State:
        return q.x_T - q.z_t

    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> tuple[State, State]:
        """X_0 = (X_t - alpha Y) / (sigma + alpha), X_T = X_0 + Y."""
        z_t = (x_t - alpha * y) / (sigma + alpha)
        return z_t, z_t + y
