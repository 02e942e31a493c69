"""The interface of a solver: one step, and the loop along a grid.

The same solvers integrate over s, along the path of a head from noise to a token, and over t, along the path of a whole
state (`tmatch.kernel.MeanODE`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from tmatch.tensors import State, Time
from tmatch.times import Steps, time_grid

Velocity = Callable[[Time, State], State]
"""dy/ds at (s, y)."""
Step = Callable[[Velocity, State, Tensor, Tensor], State]
"""(velocity, y, s, s_next) -> y at s_next, from y at s."""


class Solver(ABC):
    """Integrates dy/ds = u_s(y) (Eq. 8)."""

    @abstractmethod
    def solve(self, velocity: Velocity, y: State) -> State:
        """y at s = 1, from y at s = 0."""

    @abstractmethod
    def stepper(self) -> Step:
        """A function that takes step after step along any grid; a new one for every solve, since it may remember."""


class FixedStep(Solver):
    """One `step` per interval of a grid: a number of equal steps from 0 to 1, or an increasing list of times."""

    order: ClassVar[int]
    evaluations: ClassVar[int]
    """Velocity evaluations per step."""

    def __init__(self, steps: Steps = 4) -> None:
        self.grid = time_grid(steps)
        if self.grid[0] != 0 or self.grid[-1] != 1:
            raise ValueError(f"A solver integrates from s = 0 to s = 1; got {self.grid.tolist()}.")

    @property
    def calls(self) -> int:
        """Velocity evaluations per solve."""
        return self.evaluations * (len(self.grid) - 1)

    def solve(self, velocity: Velocity, y: State) -> State:
        step = self.stepper()
        for s, s_next in pairwise(self.grid):
            y = step(velocity, y, s, s_next)
        return y

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.grid) - 1})"


class OneStep(FixedStep):
    """A `step` that needs nothing from earlier steps."""

    @abstractmethod
    def step(self, velocity: Velocity, y: State, s: Tensor, s_next: Tensor) -> State:
        """y at s_next, from y at s."""

    def stepper(self) -> Step:
        return self.step
