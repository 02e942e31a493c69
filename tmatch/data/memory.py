"""Data sets that fit in memory."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tmatch.condition import Condition
from tmatch.tensors import State, positive_int, require_finite


def permutation(count: int, *key: int | str) -> Tensor:
    """A random permutation of 0 .. count - 1, determined by the key."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.randperm(count, generator=torch.Generator().manual_seed(int.from_bytes(digest, "big")))


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> Tensor:
    """The permutation of an epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


@dataclass(frozen=True)
class InMemory:
    """States, and optionally their conditions, in batches that depend on (seed, step) alone.

    Each epoch has its own permutation; a batch may span two epochs, so that no sample is dropped.
    """

    x: State
    condition: Condition | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.x.ndim < 3 or len(self.x) == 0:
            raise ValueError(f"States must have shape (samples, *grid, channels); got {tuple(self.x.shape)}.")
        if self.condition is not None and len(self.condition) != len(self.x):
            raise ValueError(
                f"Each state needs one condition; got {len(self.x)} states and {len(self.condition)} conditions."
            )
        require_finite("the data", self.x)

    def __len__(self) -> int:
        return len(self.x)

    def indices(self, step: int, size: int) -> Tensor:
        """The indices of the samples in a step's batch."""
        first = step * positive_int("The batch size", size)
        epochs = range(first // len(self), (first + size - 1) // len(self) + 1)
        order = torch.cat([_order(len(self), self.seed, epoch) for epoch in epochs])
        offset = first - epochs[0] * len(self)
        return order[offset : offset + size]

    def batch(self, step: int, size: int) -> tuple[State, Condition | None]:
        """The states and conditions of a step's batch."""
        chosen = self.indices(step, size)
        return self.x[chosen], None if self.condition is None else self.condition[chosen]
