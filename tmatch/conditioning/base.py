"""The contract: captions in, a condition out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from tmatch.condition import Condition


class Conditioner(nn.Module, ABC):
    """Turns captions into a condition `width` wide; that of the empty caption is the null condition of guidance."""

    width: int
    frozen: ClassVar[bool] = False
    """Whether it was trained before, elsewhere."""

    @property
    def empty(self) -> Any:  # noqa: ANN401
        """The empty caption."""
        return ""

    @abstractmethod
    def forward(self, captions: Sequence[Any]) -> Condition:
        """One condition a caption: texts, unless an encoder says otherwise."""

    def prompt_warnings(self, prompts: Sequence[str]) -> list[str]:
        """What to tell somebody whose prompts are not read as they stand, in sentences."""
        return []

    def null(self) -> Condition:
        """What guidance pushes away from."""
        return self([self.empty])


def shortened(text: str, longest: int = 60) -> str:
    """A text to show to somebody who knows it: the beginning of a long one."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def listed(words: Sequence[str], most: int = 30) -> str:
    """Words to show, of many the first, and how many more there are."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def has_surrogates(text: str) -> bool:
    """Whether a text has unpaired surrogates, which come of bytes that are not UTF-8, and which no tokenizer reads."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)
