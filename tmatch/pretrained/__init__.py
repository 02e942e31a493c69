"""Networks trained elsewhere, from a hub or a folder: autoencoders of diffusers, text encoders of transformers."""

from tmatch.pretrained.autoencoder import PretrainedAutoencoder, load_autoencoder
from tmatch.pretrained.identity import digest
from tmatch.pretrained.text import PretrainedText, load_text_encoder

__all__ = ["PretrainedAutoencoder", "PretrainedText", "digest", "load_autoencoder", "load_text_encoder"]
