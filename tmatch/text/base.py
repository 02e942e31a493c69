"""The contract: captions in, a condition out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import nn

from tmatch.condition import Condition


class TextEncoder(nn.Module, ABC):
    """Turns captions into a condition `width` wide; the empty caption is the null condition of guidance."""

    width: int

    @abstractmethod
    def forward(self, captions: Sequence[str]) -> Condition:
        """One condition a caption."""

    def null(self) -> Condition:
        """What guidance pushes away from."""
        return self([""])
