"""Captioned images, wherever they come from, a few at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor


class CaptionedImages(ABC):
    """Images and a caption for each; images are read or drawn when asked for, and need not fit in memory."""

    captions: Sequence[str]

    def __len__(self) -> int:
        return len(self.captions)

    @abstractmethod
    def load(self, indices: Sequence[int]) -> Tensor:
        """Some of the images, (n, 3, height, width) in [0, 1]."""

    def batches(self, size: int = 125) -> Iterator[Tensor]:
        """All of the images, in order."""
        for start in range(0, len(self), size):
            yield self.load(range(start, min(start + size, len(self))))
