"""Y = X_T, the data."""

from torch import Tensor

from tmatch.parametrization.base import Parametrization
from tmatch.process import Transition
from tmatch.tensors import State


class CleanState(Parametrization):
    """Y = X_T: x-prediction."""

    symbol = "X_T"

    def target(self, q: Transition) -> State:
        return q.x_T

    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> tuple[State, State]:
        """Z_t = (X_t - alpha Y) / sigma; sigma > 0 because no step starts at t = 1."""
        return (x_t - alpha * y) / sigma, y
