"""From captioned pictures to shards of latents and text embeddings, to train on."""

from tmatch.prepare.crop import Crop
from tmatch.prepare.manifest import Manifest, Settings
from tmatch.prepare.naming import open_source
from tmatch.prepare.run import Preparation
from tmatch.prepare.shards import ShardSet
from tmatch.prepare.source import Source

__all__ = ["Crop", "Manifest", "Preparation", "Settings", "ShardSet", "Source", "open_source"]
