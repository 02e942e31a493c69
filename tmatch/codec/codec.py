"""Images to states and back: an optional autoencoder, then patches."""

from typing import Protocol

import torch
from torch import Tensor, nn

from tmatch.codec.patch import Patchify, require_images, require_unit_range
from tmatch.tensors import State


class LatentSpace(Protocol):
    """An autoencoder: images in [0, 1] to latents (n, channels, height, width) and back."""

    @property
    def codebook_size(self) -> int | None:
        """The number of codes; None if latents are continuous."""

    @property
    def factor(self) -> int:
        """The downsampling factor: pixels per latent position along each side."""

    def encode(self, images: Tensor, /) -> Tensor:
        """The latents of images."""

    def decode(self, latents: Tensor, /) -> Tensor:
        """The images of latents."""


class Latents(nn.Module):
    """Stands for the autoencoder of latents that were encoded elsewhere: the "images" of its codec are latents."""

    codebook_size: None = None
    factor = 1

    def encode(self, latents: Tensor) -> Tensor:
        return latents

    def decode(self, latents: Tensor) -> Tensor:
        return latents


class Codec(nn.Module):
    """State = patches of the latent; without an autoencoder, of the pixels in [-1, 1]."""

    def __init__(self, patch: Patchify, autoencoder: LatentSpace | None = None) -> None:
        super().__init__()
        self.patch = patch
        self.autoencoder = autoencoder

    @property
    def codebook_size(self) -> int | None:
        """The number of codes; None if states are continuous."""
        return None if self.autoencoder is None else self.autoencoder.codebook_size

    @property
    def latent(self) -> bool:
        """Whether it takes and gives latents (n, channels, height, width) instead of images."""
        return isinstance(self.autoencoder, Latents)

    @property
    def token(self) -> tuple[int, int]:
        """Height and width of a token in pixels."""
        factor = 1 if self.autoencoder is None else self.autoencoder.factor
        return self.patch.patch[0] * factor, self.patch.patch[1] * factor

    @torch.no_grad()
    def encode(self, images: Tensor) -> State:
        """The states of images (n, 3, height, width) in [0, 1]."""
        if not self.latent:
            require_images(images)
            require_unit_range(images)
        return self.patch.encode(2 * images - 1 if self.autoencoder is None else self.autoencoder.encode(images))

    @torch.no_grad()
    def decode(self, x: State) -> Tensor:
        """The images of states, in [0, 1]."""
        image = self.patch.decode(x)
        return ((image + 1) / 2).clamp(0, 1) if self.autoencoder is None else self.autoencoder.decode(image)
