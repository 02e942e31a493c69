"""The times of transitions: the grid a model is trained on, and the grid it is sampled on.

A grid to sample on can be named. `GRIDS` holds functions from equal times to times; to add one, write a function and a
row.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tmatch.config import MAX_SAMPLING_STEPS, call_by_name
from tmatch.rng import RandomStreams
from tmatch.tensors import Time, positive_int

Steps = int | Sequence[float]
"""How to sample: a number of steps, or the times to visit."""


def as_grid(points: Sequence[float]) -> Tensor:
    """A validated grid of times, in float64 so that rounding loses no step, and on the CPU, where loops run."""
    grid = torch.as_tensor(points, dtype=torch.float64, device="cpu")
    ok = grid.ndim == 1 and len(grid) >= 2 and bool((grid.diff() > 0).all())
    if not (ok and float(grid[0]) >= 0 and float(grid[-1]) <= 1):
        raise ValueError(f"A time grid needs at least two increasing numbers in [0, 1]; got {grid.tolist()}.")
    return grid


def parse_steps(steps: Steps) -> int | Tensor:
    """A validated number of steps, or a validated grid of times."""
    if isinstance(steps, Iterable) and not isinstance(steps, str):
        return as_grid(steps)
    return positive_int("The number of steps", steps, MAX_SAMPLING_STEPS)


def time_grid(steps: Steps) -> Tensor:
    """Equal steps from 0 to 1 for a number; a list of times unchanged."""
    chosen = parse_steps(steps)
    return as_grid(Grid.uniform(chosen).points) if isinstance(chosen, int) else chosen


class Times(ABC):
    """Where t comes from in Algorithm 1, and the times Algorithm 2 visits."""

    @abstractmethod
    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        """Sample a time, and the time after it, for each image of a training batch."""

    @abstractmethod
    def grid(self, steps: Steps | None) -> Tensor:
        """The times to visit when sampling: a number of steps, any list of times, or None for the default."""

    @abstractmethod
    def nearest(self, t: float) -> "FixedTime":
        """The training time closest to t."""

    def snapped(self, points: list[float]) -> list[float]:
        """The times of training that are closest to those of a named grid."""
        return points


@dataclass(frozen=True)
class FixedTime:
    """One time for all images, to measure a loss at."""

    t: float
    t_next: float

    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        t, t_next = torch.tensor((self.t, self.t_next), device=rng.device, dtype=rng.time_dtype)
        return t.expand(len(rng)), t_next.expand(len(rng))


@dataclass(frozen=True)
class Grid(Times):
    """0 = t_0 < t_1 < ... < t_T = 1; training samples t uniformly from t_0 .. t_{T-1}."""

    points: tuple[float, ...]

    def __post_init__(self) -> None:
        if as_grid(self.points)[[0, -1]].tolist() != [0, 1]:
            raise ValueError(f"A training grid must start at 0 and end at 1; got {self.points}.")

    @classmethod
    def uniform(cls, steps: int) -> Self:
        count = positive_int("The number of steps", steps, MAX_SAMPLING_STEPS)
        return cls(tuple(i / count for i in range(count + 1)))

    @classmethod
    def exponential(cls, steps: int) -> Self:
        """Each step but the last halves the remaining time: 0, 0.5, 0.75, 1 for T = 3."""
        return cls((*(1 - 0.5**i for i in range(positive_int("The number of steps", steps, MAX_SAMPLING_STEPS))), 1.0))

    def __str__(self) -> str:
        count = "1 step" if self.steps == 1 else f"{self.steps} steps"
        equal = all(abs(t - i / self.steps) < 1e-9 for i, t in enumerate(self.points))
        return count if equal else f"{count}: {', '.join(f'{t:g}' for t in self.points)}"

    @property
    def steps(self) -> int:
        return len(self.points) - 1

    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        points = torch.tensor(self.points, device=rng.device, dtype=rng.time_dtype)
        index = (rng.uniform() * self.steps).long()
        return points[index], points[index + 1]

    def nearest(self, t: float) -> FixedTime:
        k = min(range(self.steps), key=lambda k: abs(self.points[k] - t))
        return FixedTime(self.points[k], self.points[k + 1])

    def snapped(self, points: list[float]) -> list[float]:
        """The nearest points of this grid, if it is finer."""
        if len(points) >= len(self.points):
            return points
        found = [min(self.points, key=lambda own: abs(own - t)) for t in points]
        if len(set(found)) < len(found):
            raise ValueError(f"A grid of {len(points) - 1} steps has times closer than the {self.steps} of training.")
        return found

    def grid(self, steps: Steps | None) -> Tensor:
        """The whole grid, `steps` evenly chosen intervals of it, or a list of its times."""
        points = as_grid(self.points)
        chosen = self.steps if steps is None else parse_steps(steps)
        if isinstance(chosen, int):
            if chosen > self.steps:
                raise ValueError(f"This model takes at most {self.steps} steps, as in training; got {chosen}.")
            return points[[round(i * self.steps / chosen) for i in range(chosen + 1)]]
        unknown = [float(t) for t in chosen[:-1] if (points - t).abs().min() > 1e-6]
        if unknown:
            trained = str(self) if self.steps > 32 else str(self.points)
            raise ValueError(f"This model was not trained at t = {unknown[:8]}; choose from its grid: {trained}.")
        return chosen


@dataclass(frozen=True)
class LogitNormal:
    """t = sigmoid(mean + std Z): more weight on the middle, where the task is hardest."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0 < self.std < math.inf):
            raise ValueError(f"LogitNormal needs a finite mean and a positive std; got {self.mean} and {self.std}.")

    def sample(self, rng: RandomStreams, *shape: int) -> Tensor:
        """Sample times, (batch, *shape)."""
        return torch.sigmoid(self.mean + self.std * rng.normal(*shape).to(rng.time_dtype))


@dataclass(frozen=True)
class Uniform:
    """t ~ U[0, 1]."""

    def sample(self, rng: RandomStreams, *shape: int) -> Tensor:
        return rng.uniform(*shape)


Density = Uniform | LogitNormal
DENSITIES: dict[str, Density] = {"uniform": Uniform(), "logit-normal": LogitNormal()}


@dataclass(frozen=True)
class Continuous(Times):
    """t from a density on [0, 1]; the number of steps is chosen when sampling."""

    density: Density = Uniform()
    steps: int = 32

    def __post_init__(self) -> None:
        positive_int("The number of steps", self.steps, MAX_SAMPLING_STEPS)

    def __str__(self) -> str:
        return f"continuous, {self.steps} steps"

    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        t = self.density.sample(rng)
        return t, t  # the step is infinitesimal

    def nearest(self, t: float) -> FixedTime:
        return FixedTime(t, t)

    def grid(self, steps: Steps | None) -> Tensor:
        return time_grid(self.steps if steps is None else steps)


def uniform(u: Tensor) -> Tensor:
    """Equal steps."""
    return u


def shifted(u: Tensor, shift: float = 3.0) -> Tensor:
    """sigma' = s sigma / (1 + (s - 1) sigma) for the noise sigma = 1 - t: more steps in the noise for s > 1."""
    return u / (u + shift * (1 - u))


def resolution(u: Tensor) -> Tensor:
    """Equal steps for images of the size of training; `build_grid` shifts them for others."""
    return u


def exponential(u: Tensor) -> Tensor:
    """Each step but the last halves the remaining time: the paper's grid."""
    if len(u) > 54:  # 1 - 2^-53 is the largest number below 1
        raise ValueError(f"The grid 'exponential' has at most 53 steps; got {len(u) - 1}.")
    return as_grid(Grid.exponential(len(u) - 1).points)


def power(u: Tensor, exponent: float = 2.0) -> Tensor:
    """t = u^p: more steps in the noise for p > 1, and near the data for p < 1."""
    return u**exponent


def karras(u: Tensor, rho: float = 7.0) -> Tensor:
    """Equal steps of ((1 - t) / t)^(1 / rho) from 80 to 0.002 (Karras et al., 2022), with t = 0 and 1 for the ends."""
    if rho <= 0:
        raise ValueError(f"rho of karras must be positive; got {rho}.")
    first, last = 80.0 ** (1 / rho), 0.002 ** (1 / rho)
    t = 1 / (1 + (first + u * (len(u) - 1) / max(len(u) - 2, 1) * (last - first)).clamp(min=0) ** rho)
    return torch.cat((u[:1], t[1:-1], u[-1:]))


GRIDS: dict[str, Callable[..., Tensor]] = {
    "uniform": uniform,
    "shifted": shifted,
    "resolution": resolution,
    "exponential": exponential,
    "power": power,
    "karras": karras,
}


def build_grid(spec: str, steps: int, scale: float = 1.0) -> list[float]:
    """The times of a named grid, such as 'uniform', 'shifted:3' or 'karras:7'.

    `scale` is the number of tokens over that of the training images: 'resolution' shifts by its square root (Esser et
    al., 2024), and by nothing at the size of training.
    """
    spec = f"shifted:{math.sqrt(scale)}" if spec == "resolution" else spec
    t = call_by_name("grid", GRIDS, spec, time_grid(steps))
    try:
        return list(as_grid(t.tolist()).tolist())
    except ValueError:
        raise ValueError(f"The grid '{spec}' does not increase from 0 to 1 in {steps} steps; change it.") from None
