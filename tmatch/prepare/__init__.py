"""Encoding images into data shards: latents with text embeddings, labels, or nothing."""

from tmatch.prepare.run import Preparation

__all__ = ["Preparation"]
