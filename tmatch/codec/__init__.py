"""Images to tokens and back: an optional autoencoder, then patches."""

from tmatch.codec.autoencoder import Autoencoder
from tmatch.codec.codec import Codec, Latents, LatentSpace
from tmatch.codec.codes import CodeAutoencoder
from tmatch.codec.patch import Patchify

__all__ = ["Autoencoder", "CodeAutoencoder", "Codec", "LatentSpace", "Latents", "Patchify"]
