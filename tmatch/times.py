"""When transitions happen: the grid a model is trained on, and the grid it is sampled on."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tmatch.rng import RandomStreams
from tmatch.tensors import Time, positive_int

Steps = int | Sequence[float]
"""How to sample: a number of steps, or the times to visit."""


def as_grid(points: Sequence[float]) -> Tensor:
    """The times of a grid, checked: float64, so that no step is lost to rounding, and on the CPU, where loops run."""
    grid = torch.as_tensor(points, dtype=torch.float64, device="cpu")
    ok = grid.ndim == 1 and len(grid) >= 2 and bool((grid.diff() > 0).all())
    if not (ok and float(grid[0]) >= 0 and float(grid[-1]) <= 1):
        raise ValueError(f"A time grid is two or more increasing numbers from 0 to 1; got {grid.tolist()}.")
    return grid


def parse_steps(steps: Steps) -> int | Tensor:
    """A number of steps, or a grid of times: whichever was meant, checked."""
    if isinstance(steps, Iterable) and not isinstance(steps, str):
        return as_grid(steps)
    return positive_int("The number of steps", steps)


def time_grid(steps: Steps) -> Tensor:
    """Equal steps from 0 to 1 for a number; a list of times as it is."""
    chosen = parse_steps(steps)
    return as_grid(Grid.uniform(chosen).points) if isinstance(chosen, int) else chosen


class Times(ABC):
    """Where t comes from in Algorithm 1, and the times Algorithm 2 visits."""

    @abstractmethod
    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        """A time and the one that follows it, for each image of a training batch."""

    @abstractmethod
    def grid(self, steps: Steps | None) -> Tensor:
        """The times to visit when sampling: a number of steps, any list of times, or None for the default."""

    @abstractmethod
    def nearest(self, t: float) -> "FixedTime":
        """The one time closest to t that training draws."""


@dataclass(frozen=True)
class FixedTime:
    """One time, for all images alike: what a loss is measured at."""

    t: float
    t_next: float

    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        t, t_next = torch.tensor((self.t, self.t_next), device=rng.device, dtype=rng.time_dtype)
        return t.expand(len(rng)), t_next.expand(len(rng))


@dataclass(frozen=True)
class Grid(Times):
    """0 = t_0 < t_1 < ... < t_T = 1; training draws t uniformly from t_0 .. t_{T-1}."""

    points: tuple[float, ...]

    def __post_init__(self) -> None:
        grid = as_grid(self.points)
        if grid[0] != 0 or grid[-1] != 1:
            raise ValueError(f"A training grid runs from 0 to 1; got {self.points[0]} to {self.points[-1]}.")

    @classmethod
    def uniform(cls, steps: int) -> Self:
        """T equal steps."""
        count = positive_int("The number of steps", steps)
        return cls(tuple(i / count for i in range(count + 1)))

    @classmethod
    def exponential(cls, steps: int) -> Self:
        """Each step but the last halves what is left: 0, 0.5, 0.75, 1 for T = 3."""
        return cls((*(1 - 0.5**i for i in range(positive_int("The number of steps", steps))), 1.0))

    @classmethod
    def shifted(cls, steps: int, shift: float) -> Self:
        """Uniform steps moved towards the noise (shift > 1) or the data (shift < 1), as for large images."""
        if not 0 < shift < math.inf:
            raise ValueError(f"The shift of a time grid is a positive number (1 leaves it uniform); got {shift}.")
        rng = (1 - t for t in cls.uniform(steps).points[1:-1])
        return cls((0.0, *(1 - shift * u / (1 + (shift - 1) * u) for u in rng), 1.0))

    def __str__(self) -> str:
        count = "1 step" if self.steps == 1 else f"{self.steps} steps"
        equal = all(abs(t - i / self.steps) < 1e-9 for i, t in enumerate(self.points))
        return count if equal else f"{count}: {', '.join(f'{t:g}' for t in self.points)}"

    @property
    def steps(self) -> int:
        """The paper's T."""
        return len(self.points) - 1

    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        points = torch.tensor(self.points, device=rng.device, dtype=rng.time_dtype)
        index = (rng.uniform() * self.steps).long()
        return points[index], points[index + 1]

    def nearest(self, t: float) -> FixedTime:
        k = min(range(self.steps), key=lambda k: abs(self.points[k] - t))
        return FixedTime(self.points[k], self.points[k + 1])

    def grid(self, steps: Steps | None) -> Tensor:
        """The whole grid, an even choice of `steps` of its intervals, or a list of times that were all trained."""
        points = as_grid(self.points)
        chosen = self.steps if steps is None else parse_steps(steps)
        if isinstance(chosen, int):
            if chosen > self.steps:
                raise ValueError(
                    f"This model knows {self.steps} times, so it takes at most {self.steps} steps, not {chosen}; "
                    "train it with Continuous() times to sample with any number."
                )
            return points[[round(i * self.steps / chosen) for i in range(chosen + 1)]]
        unknown = [float(t) for t in chosen[:-1] if (points - t).abs().min() > 1e-6]
        if unknown:
            raise ValueError(
                f"The model was never trained at t = {unknown}; choose from its grid {self.points}, "
                "or train it with Continuous() times."
            )
        return chosen


@dataclass(frozen=True)
class LogitNormal:
    """t = sigmoid(mean + std Z): more of the middle, where the task is hardest."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0 < self.std < math.inf):
            raise ValueError(f"A logit-normal has a finite mean and a positive std; got {self.mean} and {self.std}.")

    def sample(self, rng: RandomStreams, *shape: int) -> Tensor:
        """Draw times, (batch, *shape)."""
        return torch.sigmoid(self.mean + self.std * rng.normal(*shape).to(rng.time_dtype))


@dataclass(frozen=True)
class Uniform:
    """t ~ U[0, 1]."""

    def sample(self, rng: RandomStreams, *shape: int) -> Tensor:
        """Draw times, (batch, *shape)."""
        return rng.uniform(*shape)


Density = Uniform | LogitNormal


@dataclass(frozen=True)
class Continuous(Times):
    """t from a density on [0, 1]: the number of steps is chosen when sampling."""

    density: Density = Uniform()
    steps: int = 32

    def __post_init__(self) -> None:
        positive_int("The number of steps", self.steps)

    def __str__(self) -> str:
        return f"continuous, {self.steps} steps"

    def sample(self, rng: RandomStreams) -> tuple[Time, Time]:
        """The step is infinitesimal: the time that follows t is t itself."""
        t = self.density.sample(rng)
        return t, t

    def nearest(self, t: float) -> FixedTime:
        return FixedTime(t, t)

    def grid(self, steps: Steps | None) -> Tensor:
        """Equal steps for a number; any list of times otherwise."""
        return time_grid(self.steps if steps is None else steps)
