"""Data: toy densities, captioned shapes, tensors in memory."""

from tmatch.data.autoencoder import Autoencoder
from tmatch.data.memory import InMemory
from tmatch.data.toy import TOYS

__all__ = ["TOYS", "Autoencoder", "InMemory"]
