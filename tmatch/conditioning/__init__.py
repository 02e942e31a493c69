"""What an image is generated from, as a `Condition`: text, class labels, or nothing."""

from tmatch.conditioning.base import Conditioner
from tmatch.conditioning.embedded import EmbeddedText
from tmatch.conditioning.words import WordEncoder

__all__ = ["Conditioner", "EmbeddedText", "WordEncoder"]
