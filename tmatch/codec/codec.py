"""Images to states and back: an autoencoder, where there is one, and patches."""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from tmatch.codec.patch import Patchify
from tmatch.tensors import State


class LatentSpace(Protocol):
    """An autoencoder: latents (n, channels, height, width) of images in [0, 1], and back."""

    @property
    def codes(self) -> int | None:
        """How many codes there are, where latents are made of them."""

    @property
    def factor(self) -> int:
        """How many pixels, each way, one place of the latents stands for."""

    def encode(self, images: Tensor, /) -> Tensor:
        """The latents of images."""

    def decode(self, latents: Tensor, /) -> Tensor:
        """The images of latents."""


class Codec(nn.Module):
    """State = patches of the latent; without an autoencoder, of the pixels in [-1, 1]."""

    def __init__(self, patch: Patchify, autoencoder: LatentSpace | None = None) -> None:
        super().__init__()
        self.patch = patch
        self.autoencoder = autoencoder

    @property
    def codes(self) -> int | None:
        """How many codes there are, where states are made of them."""
        return None if self.autoencoder is None else self.autoencoder.codes

    @property
    def token(self) -> tuple[int, int]:
        """Height and width of what one token stands for, in pixels."""
        factor = 1 if self.autoencoder is None else self.autoencoder.factor
        return self.patch.patch[0] * factor, self.patch.patch[1] * factor

    @torch.no_grad()
    def encode(self, images: Tensor) -> State:
        """The states of images (n, 3, height, width) in [0, 1]."""
        return self.patch.encode(2 * images - 1 if self.autoencoder is None else self.autoencoder.encode(images))

    @torch.no_grad()
    def decode(self, x: State) -> Tensor:
        """The images of states, in [0, 1]."""
        image = self.patch.decode(x)
        return ((image + 1) / 2).clamp(0, 1) if self.autoencoder is None else self.autoencoder.decode(image)

    def encode_all(self, batches: Iterable[Tensor], device: torch.device) -> State:
        """The states of all images of some batches, on the device of the codec."""
        return torch.cat([self.encode(images.to(device)) for images in batches])
