"""Fresh noise at every time: independent linear."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tmatch.process.base import Process
from tmatch.process.schedule import Linear, Schedule
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time


@dataclass(frozen=True)
class IndependentLinearProcess(Process):
    """X_t = (1 - t) X_{0,t} + t X_T, the X_{0,t} ~ N(0, I) independent (Eq. 15)."""

    schedule: Schedule = field(default=Linear(), init=False)
    noise_kept: ClassVar[Literal["none"]] = "none"

    def __str__(self) -> str:
        return f"{self.schedule}, an X_0 at each t"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        """Z_{t+1} ~ N(0, I), independent of Z_t."""
        return rng.normal(*z_t.shape[1:])
