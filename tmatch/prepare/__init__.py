"""Encoding captioned images into data shards of latents and text embeddings."""

from tmatch.prepare.run import Preparation

__all__ = ["Preparation"]
