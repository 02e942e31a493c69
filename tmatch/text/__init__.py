"""Captions to conditions: the small encoder that is trained along with a generator."""

from tmatch.text.base import TextEncoder
from tmatch.text.words import WordEncoder

__all__ = ["TextEncoder", "WordEncoder"]
