"""The interface of a process: a schedule, and how the noise evolves."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from torch import Tensor

from tmatch.process.schedule import Schedule
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time, expand_like, positive_int


@dataclass(frozen=True)
class Transition:
    """Two consecutive states of a process, and their parts: X_t = sigma_t Z_t + alpha_t X_T."""

    z_t: State
    x_t: State
    x_next: State
    x_T: State
    sigma: Tensor  # sigma_t and alpha_t, broadcastable against a state
    alpha: Tensor


@dataclass(frozen=True)
class Process(ABC):
    """X_t = sigma_t Z_t + alpha_t X_T with Z_t ~ N(0, I): a schedule, and how Z_t evolves from step to step.

    The marginals q_t depend on the schedule alone; the processes differ in q_{t+1|t}.
    """

    schedule: Schedule

    noise_kept: ClassVar[Literal["all", "some", "none"]]
    """How much of Z_t is kept in Z_{t+1}."""

    @abstractmethod
    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        """Z_{t+1} given Z_t."""

    def coefficients(self, t: Time, x: State) -> tuple[Tensor, Tensor]:
        """(sigma_t, alpha_t), broadcastable against x, in its dtype."""
        return expand_like(self.schedule.sigma(t), x).to(x.dtype), expand_like(self.schedule.alpha(t), x).to(x.dtype)

    def state(self, z_t: State, x_T: State, t: Time) -> State:
        """X_t = sigma_t Z_t + alpha_t X_T."""
        sigma, alpha = self.coefficients(t, x_T)
        return sigma * z_t + alpha * x_T

    def to_linear(self, x_t: State, t: Time) -> State:
        """U = X_t / (sigma_t + alpha_t), the state of the linear schedule at `schedule.linear_time(t)`."""
        sigma, alpha = self.coefficients(t, x_t)
        return x_t / (sigma + alpha)

    def from_linear(self, u: State, t: Time) -> State:
        """X_t from U."""
        sigma, alpha = self.coefficients(t, u)
        return (sigma + alpha) * u

    def source(self, shape: Iterable[int], rng: RandomStreams) -> State:
        """X_0 ~ p_0 = N(0, I)."""
        return rng.normal(*(positive_int("Each size of a state", size) for size in shape))

    def sample(self, x_T: State, t: Time, t_next: Time, rng: RandomStreams) -> Transition:
        """(X_t, X_{t+1}) ~ q(. | X_T)."""
        z_t = rng.normal(*x_T.shape[1:])
        x_next = self.advance(z_t, x_T, t, t_next, rng)
        return Transition(z_t, self.state(z_t, x_T, t), x_next, x_T, *self.coefficients(t, x_T))

    def path(self, x_T: State, grid: Tensor, rng: RandomStreams) -> list[State]:
        """A path (X_0, ..., X_T) ~ q(. | X_T), one state per time of the grid."""
        z_t = rng.normal(*x_T.shape[1:])
        states = [self.state(z_t, x_T, grid[0])]
        for t, t_next in pairwise(grid):
            z_t = self.next_noise(z_t, t, t_next, rng)
            states.append(self.state(z_t, x_T, t_next))
        return states

    def advance(self, z_t: State, x_T: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        """X_{t+1} ~ q(. | Z_t, X_T)."""
        return self.state(self.next_noise(z_t, t, t_next, rng), x_T, t_next)

    def renoise(self, x_t: State, t: Time, t_earlier: Time, rng: RandomStreams) -> State:
        """Return to an earlier time by adding noise, keeping the marginals: X_t ~ q_t becomes X ~ q_{t_earlier}."""
        sigma, alpha = self.coefficients(t, x_t)
        sigma_earlier, alpha_earlier = self.coefficients(t_earlier, x_t)
        shrink = alpha_earlier / alpha
        fresh = (sigma_earlier**2 - (shrink * sigma) ** 2).clamp(min=0).sqrt()
        return shrink * x_t + fresh * rng.normal(*x_t.shape[1:])
