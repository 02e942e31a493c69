"""Samplers: the order in which Algorithm 2 visits its times, and the noise it adds on the way.

A sampler is chosen when sampling: the weights are the same. It may go back in time (`steps`) and replace the process by
one with the same marginals (`process`). To add one, write a class here and a row of `SAMPLERS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from torch import Tensor

from tmatch.config import MAX_LAYERS, lookup
from tmatch.process import GaussianProcess, Process
from tmatch.rng import RandomStreams
from tmatch.tensors import State, Time, expand_like


@dataclass(frozen=True)
class Sampler:
    """Algorithm 2 as written: every time of the grid once, in order. The base class of all samplers."""

    def steps(self, grid: Tensor) -> Iterator[tuple[Time, Time]]:
        """Pairs (t, t'): a transition if t' > t, noise added if t' < t."""
        return pairwise(grid)

    def process(self, own: Process) -> Process:
        """The process to sample with, given the one of training: the same schedule, possibly other noise."""
        return own


PAPER_RESTARTS = ((0.6, 0.4, 1), (0.8, 0.6, 3), (1.0, 0.8, 3))
"""(late, early, times) of the paper."""


@dataclass(frozen=True)
class RestartSampler(Sampler):
    """At time `late`, add noise to return to `early`, `times` times, for each interval (Xu et al., 2023).

    The defaults are the paper's: 1000 steps become 2400 transitions.
    """

    intervals: tuple[tuple[float, float, int], ...] = PAPER_RESTARTS

    def __post_init__(self) -> None:
        for late, early, times in self.intervals:
            if not (0 <= early < late <= 1 and 1 <= times <= MAX_LAYERS):
                raise ValueError(f"Pass (late, early, times <= {MAX_LAYERS}), 0 <= early < late <= 1; got {self}.")

    def steps(self, grid: Tensor) -> Iterator[tuple[Time, Time]]:
        back: dict[int, list[int]] = {}
        for late, early, times in self.intervals:
            high, low = (int((grid - t).abs().argmin()) for t in (late, early))
            if high == low:
                raise ValueError(f"{len(grid) - 1} steps are too few to restart from t = {late} at {early}.")
            back.setdefault(high, []).extend([low] * times)
        for index, step in enumerate(pairwise(grid), start=1):
            yield step
            for low in back.get(index, []):
                yield grid[index], grid[low]
                yield from pairwise(grid[low : index + 1])


@dataclass(frozen=True)
class DDIMProcess(Process):
    """Z_{t+1} = sqrt(1 - w^2) Z_t + w Z with w = eta sqrt(1 - rho^2), rho the correlation of the diffusion process."""

    eta: float = 1.0
    noise_kept: ClassVar[Literal["some"]] = "some"

    def next_noise(self, z_t: State, t: Time, t_next: Time, rng: RandomStreams) -> State:
        kept = self.schedule.alpha(t) * self.schedule.sigma(t_next)
        rho = kept / (self.schedule.sigma(t) * self.schedule.alpha(t_next))
        w = expand_like(self.eta * (1 - rho**2).clamp(min=0).sqrt(), z_t)
        return (1 - w**2).sqrt().to(z_t.dtype) * z_t + w.to(z_t.dtype) * rng.normal(*z_t.shape[1:])


@dataclass(frozen=True)
class DDIMSampler(Sampler):
    """A fraction `eta` of DDPM's noise: 0 is deterministic, 1 is DDPM (Song et al., 2021)."""

    eta: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be in [0, 1]: 0 is deterministic, 1 is DDPM; got {self.eta}.")

    def process(self, own: Process) -> Process:
        return DDIMProcess(own.schedule, self.eta) if self.eta else GaussianProcess(own.schedule)


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "default": Sampler,
    "restart": lambda *n: RestartSampler(tuple(zip(n[::3], n[1::3], map(int, n[2::3]), strict=True)) or PAPER_RESTARTS),
    "ddim": DDIMSampler,
}


def build_sampler(spec: str) -> Sampler:
    """A sampler from its name and the numbers it takes: 'default', 'restart', 'ddim:0.5'."""
    name, _, given = spec.partition(":")
    make = lookup("sampler", SAMPLERS, name)
    try:
        numbers = [float(number) for number in given.split(",") if given]
    except ValueError:
        raise ValueError(f"The arguments of a sampler are numbers, as in ddim:0.5; got '{spec}'.") from None
    try:
        return make(*numbers)
    except (TypeError, OverflowError):  # OverflowError: an infinite number
        raise ValueError(f"The sampler '{name}' does not take the arguments '{given}'.") from None
