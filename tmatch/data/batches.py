"""Training batches of states and their captions, and data sets that fit in memory."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tmatch.tensors import State, positive_int, require_finite


def permutation(count: int, *key: int | str) -> Tensor:
    """A random permutation of 0 .. count - 1, determined by the key."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.randperm(count, generator=torch.Generator().manual_seed(int.from_bytes(digest, "big")))


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


@dataclass(frozen=True)
class InMemory:
    """States in batches that depend on (seed, step) alone.

    Each epoch has its own permutation; a batch may span two epochs, so that no sample is dropped.
    """

    x: State
    seed: int = 0

    def __post_init__(self) -> None:
        require_finite("the data", self.x)
        if self.x.ndim < 3 or len(self.x) == 0:
            raise ValueError(f"States must have shape (samples, *grid, channels); got {tuple(self.x.shape)}.")

    def __len__(self) -> int:
        return len(self.x)

    def indices(self, step: int, size: int) -> Tensor:
        """The indices of the samples in a step's batch."""
        first = step * positive_int("The batch size", size)
        epochs = range(first // len(self), (first + size - 1) // len(self) + 1)
        order = torch.cat([_order(len(self), self.seed, epoch) for epoch in epochs])
        offset = first - epochs[0] * len(self)
        return order[offset : offset + size]


class BatchSource(ABC):
    """Captioned states in batches that depend on (seed, step) alone; any part of a batch can be read on its own."""

    seed: int

    @abstractmethod
    def batch(self, step: int, size: int, part: int, parts: int) -> tuple[State, Sequence[Any]]:
        """One of `parts` equal parts of a step's batch of `size`: states, and captions as the text encoder reads."""


@dataclass(frozen=True)
class Captioned(BatchSource):
    """States in memory, each with its caption."""

    data: InMemory
    captions: Sequence[Any]

    def __post_init__(self) -> None:
        if len(self.captions) != len(self.data):
            raise ValueError(f"Each state needs a caption; got {len(self.data)} states, {len(self.captions)} captions.")

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.data.seed

    def batch(self, step: int, size: int, part: int, parts: int) -> tuple[State, Sequence[Any]]:
        chosen = self.data.indices(step, size).tensor_split(parts)[part]
        return self.data.x[chosen], [self.captions[k] for k in chosen.tolist()]
