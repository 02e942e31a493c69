"""The interface of a parametrization: Y from a transition, and X_{t+1} from X_t and Y."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from tmatch.process import Process, Transition
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time
from tmatch.times import Steps, Times


class Parametrization(ABC):
    """A latent Y of the process with q_{t+1|t} = integral of q_{t+1|t,Y} q_{Y|t} (Eq. 6)."""

    symbol: ClassVar[str]
    """Y in the notation of the paper."""

    @abstractmethod
    def target(self, q: Transition) -> State:
        """Y, from a transition of the supervising process."""

    @abstractmethod
    def endpoints(self, x_t: State, y: State, sigma: Tensor, alpha: Tensor) -> tuple[State, State] | None:
        """The Z_t and X_T that X_t = sigma_t Z_t + alpha_t X_T and Y determine; None if they do not."""

    def advance(self, process: Process, x_t: State, y: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        """X_{t+1} ~ q(. | X_t, Y)."""
        ends = self.endpoints(x_t, y, *process.coefficients(t, x_t))
        assert ends is not None, "a Y that does not determine X_T must override `advance`"
        return process.advance(*ends, t, t_next, rng)

    def estimate(self, process: Process, x_t: State, y: State, t: Time) -> State | None:
        """The denoising estimate: the X_T that X_t and Y determine."""
        ends = self.endpoints(x_t, y, *process.coefficients(t, x_t))
        return None if ends is None else ends[1]

    def check(self, process: Process, times: Times) -> None:  # noqa: B027
        """Raise if this Y does not work with the process or the times."""

    def grid(self, times: Times, steps: Steps | None) -> Tensor:
        """The times to visit when sampling; raises if this Y cannot take those steps."""
        return times.grid(steps)
