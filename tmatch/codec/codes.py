"""A discrete autoencoder: images as grids of codes, by finite scalar quantisation (Mentzer et al., 2023)."""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from tmatch.codec.autoencoder import Autoencoder
from tmatch.codec.patch import require_images
from tmatch.rng import RandomStreams
from tmatch.tensors import positive_int


class FiniteScalar(nn.Module):
    """Rounds each channel to one of its `levels`; the codes are their combinations, so that none can die out."""

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        if not levels or min(levels) < 2:
            raise ValueError(f"Each channel of a quantiser needs at least two levels; got {levels}.")
        self.codebook_size = positive_int("The number of codes, the product of the levels,", prod(levels))
        self.levels = nn.Buffer(torch.tensor(levels))
        strides = [prod(levels[:k]) for k in range(len(levels))]
        self.strides = nn.Buffer(torch.tensor(strides), persistent=False)

    def bounded(self, z: Tensor) -> Tensor:
        """z (..., channels) squashed between its lowest and highest level."""
        half = (self.levels - 1) * (1 + 1e-3) / 2
        offset = torch.where(self.levels % 2 == 0, 0.5, 0.0)
        return (z + (offset / half).atanh()).tanh() * half - offset

    def forward(self, z: Tensor) -> Tensor:
        """The nearest levels, in [-1, 1], with a straight-through gradient."""
        bounded = self.bounded(z)
        return (bounded + (bounded.round() - bounded).detach()) / (self.levels // 2)

    def index(self, z: Tensor) -> Tensor:
        """The code of z, (...,)."""
        digits = self.bounded(z).round().long() + self.levels // 2
        return (digits * self.strides).sum(-1)

    def value(self, index: Tensor) -> Tensor:
        """The output of `forward` for any z with this code, (..., channels)."""
        digits = (index[..., None] // self.strides) % self.levels
        return (digits - self.levels // 2) / (self.levels // 2)


class CodeAutoencoder(nn.Module):
    """Images to codes (n, 1, height / 8, width / 8) and back: one code per 2x2 latents of the KL autoencoder."""

    factor = 8

    def __init__(self, levels: tuple[int, ...], channels: int = 8, width: int = 48, blocks: int = 1) -> None:
        super().__init__()
        self.networks = Autoencoder(channels, width, blocks)
        self.quantiser = FiniteScalar(levels)
        self.narrow = nn.Conv2d(4 * channels, len(levels), 1)
        self.widen = nn.Conv2d(len(levels), 4 * channels, 1)

    @property
    def codebook_size(self) -> int:
        """The number of codes."""
        return self.quantiser.codebook_size

    def project(self, image: Tensor) -> Tensor:
        """The vectors to quantise, (n, height / 8, width / 8, channels)."""
        require_images(image, self.factor)
        return self.narrow(pixel_unshuffle(self.networks.posterior(image)[0], 2)).movedim(1, -1)

    def reconstruct(self, z: Tensor) -> Tensor:
        """The image of quantised vectors."""
        return self.networks.reconstruct(pixel_shuffle(self.widen(z.movedim(-1, 1)), 2))

    def trained(self, image: Tensor, rng: RandomStreams) -> tuple[Tensor, Tensor]:
        """The reconstruction, and a divergence of 0: codes need no prior."""
        return self.reconstruct(self.quantiser(self.project(image))), image.new_zeros(())

    def standardise(self, images: Tensor, batch: int = 500) -> None:
        """Nothing to do: codes need no scale."""

    def encode(self, image: Tensor) -> Tensor:
        """The codes of an image in [0, 1], as floats (n, 1, height / 8, width / 8)."""
        return self.quantiser.index(self.project(image))[:, None].to(image.dtype)

    def decode(self, codes: Tensor) -> Tensor:
        """The image of codes, in [0, 1]."""
        return self.reconstruct(self.quantiser.value(codes[:, 0].round().long()).to(codes.dtype)).clamp(0, 1)
