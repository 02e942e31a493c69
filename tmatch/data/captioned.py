"""Captioned images that are loaded a few at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

BATCH_SIZE = 125


class CaptionedImages(ABC):
    """Images with one caption each; they are read or rendered on demand and need not fit in memory."""

    captions: Sequence[Any]
    """Text, or whatever else the conditioner reads, such as class labels."""

    def __len__(self) -> int:
        return len(self.captions)

    @abstractmethod
    def load(self, indices: Sequence[int]) -> Tensor:
        """The images with these indices, (n, 3, height, width) in [0, 1]."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes when an image changes, for the cache of encoded images."""

    def batches(self, size: int = BATCH_SIZE) -> Iterator[Tensor]:
        """All images in order, in batches of `size`."""
        for start in range(0, len(self), size):
            yield self.load(range(start, min(start + size, len(self))))
