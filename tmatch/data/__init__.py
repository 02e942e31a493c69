"""Data: toy densities, captioned shapes, folders of pictures, tensors in memory."""

from tmatch.data.autoencoder import Autoencoder
from tmatch.data.captioned import CaptionedPictures
from tmatch.data.codec import Codec
from tmatch.data.codes import CodeAutoencoder
from tmatch.data.folder import FolderPictures
from tmatch.data.memory import InMemory
from tmatch.data.shapes import ShapePictures
from tmatch.data.toy import TOYS

__all__ = [
    "TOYS",
    "Autoencoder",
    "CaptionedPictures",
    "CodeAutoencoder",
    "Codec",
    "FolderPictures",
    "InMemory",
    "ShapePictures",
]
