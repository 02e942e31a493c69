"""What an image is generated from, as a `Condition`: text, class labels, or nothing."""

from tmatch.conditioning.base import Conditioner
from tmatch.conditioning.embedded import EmbeddedText
from tmatch.conditioning.labels import ClassLabels, Unconditional
from tmatch.conditioning.words import WordEncoder

CONDITIONERS: dict[str, type[Conditioner]] = {
    "words": WordEncoder,
    "labels": ClassLabels,
    "none": Unconditional,
    "embedded": EmbeddedText,
}
"""The conditioners that a run configuration can name."""

__all__ = ["CONDITIONERS", "ClassLabels", "Conditioner", "EmbeddedText", "Unconditional", "WordEncoder"]
