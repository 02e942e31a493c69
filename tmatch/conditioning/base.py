"""The contract of conditioners: captions, labels or nothing in, a condition out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from tmatch.condition import Condition


class Conditioner(nn.Module, ABC):
    """Encodes one input per image as a condition of `width` channels.

    The condition of the input `null` is the unconditional branch of classifier-free guidance. A conditioner whose
    `width` is None is unconditional: it returns None, and guidance does not apply.
    """

    width: int | None
    null: Any
    """The input that stands for "no condition"."""
    frozen: ClassVar[bool] = False
    """Whether the weights are pretrained and not part of a training run."""

    @abstractmethod
    def forward(self, inputs: Sequence[Any]) -> Condition | None:
        """The condition of a batch, one row per input."""

    def prompt_warnings(self, prompts: Sequence[str]) -> list[str]:
        """Warnings about prompts that the model truncates or does not know."""
        return []


def require_text(inputs: Sequence[Any]) -> None:
    """Reject inputs that are not valid text, such as class labels."""
    for given in inputs:
        if not isinstance(given, str):
            raise ValueError(f"A prompt or caption must be a string; got {given!r}. For class labels, use ClassLabels.")
        if has_surrogates(given):
            raise ValueError(f"The prompt {shortened(given)!r} is invalid Unicode (unpaired surrogate); is it UTF-8?")


def shortened(text: str, length: int = 60) -> str:
    """The text, truncated with an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def listed(words: Sequence[str], limit: int = 30) -> str:
    """The first words, and how many more there are."""
    more = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {more} more" if more > 0 else "")


def has_surrogates(text: str) -> bool:
    """Whether a text contains unpaired surrogates (invalid Unicode), which no tokenizer reads."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)
