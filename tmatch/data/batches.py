"""Training batches: states and their captions, by (seed, step)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tmatch.data.memory import InMemory
from tmatch.tensors import State


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
            raise ValueError(
                f"Each state needs one caption; got {len(self.data)} states, {len(self.captions)} captions."
            )

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.data.seed

    def batch(self, step: int, size: int, part: int, parts: int) -> tuple[State, Sequence[Any]]:
        chosen = self.data.indices(step, size).tensor_split(parts)[part]
        return self.data.x[chosen], [self.captions[k] for k in chosen.tolist()]
