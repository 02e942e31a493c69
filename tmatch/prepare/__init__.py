"""From captioned images to data shards of latents and text embeddings, to train on."""

from tmatch.prepare.run import Preparation

__all__ = ["Preparation"]
