"""The processes: Z_t kept, sampled again at each step, or partly kept."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tmatch.process.base import Process
from tmatch.process.schedule import Linear, Schedule
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time, expand_like


@dataclass(frozen=True)
class GaussianProcess(Process):
    """X_t = sigma_t X_0 + alpha_t X_T, one X_0 ~ N(0, I) for all times."""

    noise_kept: ClassVar[Literal["all"]] = "all"

    def __str__(self) -> str:
        return f"{self.schedule}, one X_0"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        return z_t


@dataclass(frozen=True)
class LinearProcess(GaussianProcess):
    """X_t = (1 - t) X_0 + t X_T, one X_0 ~ N(0, I) for all times (Eq. 10)."""

    schedule: Schedule = field(default=Linear(), init=False)


@dataclass(frozen=True)
class IndependentLinearProcess(Process):
    """X_t = (1 - t) X_{0,t} + t X_T, the X_{0,t} ~ N(0, I) independent (Eq. 15)."""

    schedule: Schedule = field(default=Linear(), init=False)
    noise_kept: ClassVar[Literal["none"]] = "none"

    def __str__(self) -> str:
        return f"{self.schedule}, an X_0 at each t"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        return rng.normal(*z_t.shape[1:])


@dataclass(frozen=True)
class DiffusionProcess(Process):
    """Z_{t+1} = rho Z_t + sqrt(1 - rho^2) Z, rho = (alpha_t / sigma_t) / (alpha_{t+1} / sigma_{t+1}).

    This correlation makes X_T, ..., X_0 the Markov chain that adds independent noise, DDPM's forward process:
    q_{t+1|t,T} is its posterior, with variance beta-tilde.
    """

    noise_kept: ClassVar[Literal["some"]] = "some"

    def __str__(self) -> str:
        return f"{self.schedule}, a Markov chain"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        kept = self.schedule.alpha(t) * self.schedule.sigma(t_next)
        rho = expand_like(kept / (self.schedule.sigma(t) * self.schedule.alpha(t_next)), z_t)
        fresh = (1 - rho**2).clamp(min=0).sqrt()
        return rho.to(z_t.dtype) * z_t + fresh.to(z_t.dtype) * rng.normal(*z_t.shape[1:])
