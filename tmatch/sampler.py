"""The order in which Algorithm 2 visits its times: straight on, or going back by adding noise (Restart)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

Move = tuple[Tensor, Tensor]
"""(t, t'): a transition where t' > t, noise added where t' < t."""


@dataclass(frozen=True)
class Sampler:
    """Algorithm 2 as written: each time of the grid once, in order. Base class of all samplers."""

    def steps(self, grid: Tensor) -> Iterator[Move]:
        """Every step, in order."""
        return pairwise(grid)


@dataclass(frozen=True)
class RestartSampler(Sampler):
    """On reaching `late` go back to `early` and come again, `times` times, for each interval (Xu et al., 2023).

    The defaults are the paper's: with a base of 1000 steps, 2400 transitions. Ends of intervals go to the nearest time
    of the grid.
    """

    intervals: tuple[tuple[float, float, int], ...] = ((0.6, 0.4, 1), (0.8, 0.6, 3), (1.0, 0.8, 3))

    def __post_init__(self) -> None:
        for late, early, times in self.intervals:
            if not (0 <= early < late <= 1 and times >= 1):
                raise ValueError(
                    f"A restart goes from a late time back to an early one, 0 <= early < late <= 1, at least once; "
                    f"got {(late, early, times)}."
                )

    def steps(self, grid: Tensor) -> Iterator[Move]:
        back: dict[int, list[int]] = {}
        for late, early, times in self.intervals:
            high, low = (int((grid - t).abs().argmin()) for t in (late, early))
            if high == low:
                raise ValueError(f"{len(grid) - 1} steps are too few to go back from t = {late} to {early}; take more.")
            back.setdefault(high, []).extend([low] * times)
        for index, move in enumerate(pairwise(grid), start=1):
            yield move
            for low in back.get(index, []):
                yield grid[index], grid[low]
                yield from pairwise(grid[low : index + 1])
