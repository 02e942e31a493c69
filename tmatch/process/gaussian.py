"""One X_0 for the whole path: linear, or any schedule."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tmatch.process.base import Process
from tmatch.process.schedule import Linear, Schedule
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time


@dataclass(frozen=True)
class GaussianProcess(Process):
    """X_t = sigma_t X_0 + alpha_t X_T, one X_0 ~ N(0, I) for the whole path."""

    noise_kept: ClassVar[Literal["all"]] = "all"

    def __str__(self) -> str:
        return f"{self.schedule}, one X_0"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        """Z_{t+1} = Z_t = X_0."""
        return z_t


@dataclass(frozen=True)
class LinearProcess(GaussianProcess):
    """X_t = (1 - t) X_0 + t X_T, one X_0 ~ N(0, I) for the whole path (Eq. 10)."""

    schedule: Schedule = field(default=Linear(), init=False)
