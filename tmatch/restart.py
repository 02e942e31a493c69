"""Restart sampling (Xu et al., 2023): noise is added back on the way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tmatch.condition import Condition
from tmatch.kernel import Decoding, Kernel
from tmatch.model import TransitionMatching
from tmatch.noise import Noise
from tmatch.tensors import State
from tmatch.times import Steps


@dataclass(frozen=True)
class Restart:
    """On reaching `late`, goes back to `early` by adding noise and comes again, `times` times, for each interval.

    The defaults are the paper's: with a base of 1000 steps, 2400 evaluations.
    """

    model: TransitionMatching
    intervals: tuple[tuple[float, float, int], ...] = ((0.6, 0.4, 1), (0.8, 0.6, 3), (1.0, 0.8, 3))

    @property
    def kernel(self) -> Kernel:
        """The kernel of the model inside."""
        return self.model.kernel

    def transitions(self, steps: Steps | None = None) -> int:
        """How often the kernel is drawn from."""
        return sum(bool(t_next > t) for t, t_next in self.itinerary(self.model.grid(steps)))

    def itinerary(self, grid: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The (t, t') of every move, back ones among them; interval ends go to the nearest time of the grid."""
        nearest = [[int((grid - t).abs().argmin()) for t in (late, early)] for late, early, _ in self.intervals]
        for (late, early), (a, b, _) in zip(nearest, self.intervals, strict=True):
            if late <= early:
                raise ValueError(f"{len(grid) - 1} steps are too few to restart from t = {a} to t = {b}; take more.")
        for index, (t, t_next) in enumerate(pairwise(grid), start=1):
            yield t, t_next
            for (late, early), (*_, repeats) in zip(nearest, self.intervals, strict=True):
                if index == late:
                    for _ in range(repeats):
                        yield grid[late], grid[early]
                        yield from pairwise(grid[early : late + 1])

    @torch.no_grad()
    def sample(
        self,
        shape: Sequence[int],
        noise: Noise,
        condition: Condition | None = None,
        steps: Steps | None = None,
        decoding: Decoding = Decoding(),
    ) -> State:
        """Algorithm 2 along the itinerary; X_T of `shape`, one for each stream of the noise."""
        model = self.model
        x_t = model.process.source(shape, noise)
        for t, t_next in self.itinerary(model.grid(steps)):
            if t_next > t:
                x_t = model.step(x_t, t, t_next, noise, condition, decoding)
            else:
                x_t = model.process.renoise(x_t, t, t_next, noise)
        return x_t


Sampler = TransitionMatching | Restart
"""Anything that generates: a model by Algorithm 2, or a model inside Restart."""
