"""Captions to conditions: a small encoder that is trained along with a generator, and captions encoded before."""

from tmatch.text.base import TextEncoder
from tmatch.text.embedded import EmbeddedText
from tmatch.text.words import WordEncoder

__all__ = ["EmbeddedText", "TextEncoder", "WordEncoder"]
