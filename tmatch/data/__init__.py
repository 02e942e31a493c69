"""Data sets: toy densities, captioned shapes, folders of images, tensors in memory, shards."""

from tmatch.data.batches import InMemory
from tmatch.data.encode import CaptionedImages
from tmatch.data.folder import FolderImages
from tmatch.data.shapes import ShapeImages
from tmatch.data.toy import TOYS

__all__ = ["TOYS", "CaptionedImages", "FolderImages", "InMemory", "ShapeImages"]
