"""A discrete autoencoder: an image as a grid of codes, by finite scalar quantisation (Mentzer et al., 2023)."""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from tmatch.codec.autoencoder import Autoencoder
from tmatch.rng import RandomStreams


class FiniteScalar(nn.Module):
    """Rounds each of a few numbers to one of `levels`; their combinations are the codes, so that none can die out."""

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        if not levels or min(levels) < 2:
            raise ValueError(f"A quantiser has two levels at least in each of its numbers; got {levels}.")
        self.levels = nn.Buffer(torch.tensor(levels))
        places = [prod(levels[:k]) for k in range(len(levels))]
        self.places = nn.Buffer(torch.tensor(places), persistent=False)
        self.codes = prod(levels)

    def bounded(self, z: Tensor) -> Tensor:
        """z (..., numbers) between its lowest and highest level."""
        half = (self.levels - 1) * (1 + 1e-3) / 2
        offset = torch.where(self.levels % 2 == 0, 0.5, 0.0)
        return (z + (offset / half).atanh()).tanh() * half - offset

    def forward(self, z: Tensor) -> Tensor:
        """The nearest levels, in [-1, 1]; gradients pass as if there were no rounding."""
        bounded = self.bounded(z)
        return (bounded + (bounded.round() - bounded).detach()) / (self.levels // 2)

    def index(self, z: Tensor) -> Tensor:
        """The code of z, (...,)."""
        digits = self.bounded(z).round().long() + self.levels // 2
        return (digits * self.places).sum(-1)

    def value(self, index: Tensor) -> Tensor:
        """What `forward` makes of any z with this code, (..., numbers)."""
        digits = (index[..., None] // self.places) % self.levels
        return (digits - self.levels // 2) / (self.levels // 2)


class CodeAutoencoder(nn.Module):
    """Images to codes, (n, 1, height / 8, width / 8), and back: one code where the KL autoencoder has 2x2 latents."""

    factor = 8

    def __init__(self, levels: tuple[int, ...], channels: int = 8, width: int = 48, blocks: int = 1) -> None:
        super().__init__()
        self.networks = Autoencoder(channels, width, blocks)
        self.quantiser = FiniteScalar(levels)
        self.narrow = nn.Conv2d(4 * channels, len(levels), 1)
        self.widen = nn.Conv2d(len(levels), 4 * channels, 1)

    @property
    def codes(self) -> int:
        """How many there are."""
        return self.quantiser.codes

    def numbers(self, image: Tensor) -> Tensor:
        """What is quantised, (n, height / 8, width / 8, numbers)."""
        if image.ndim != 4 or image.shape[1] != 3 or image.shape[2] % 8 or image.shape[3] % 8:
            raise ValueError(f"Images are (n, 3, height, width), sides divisible by 8; got {tuple(image.shape)}.")
        return self.narrow(pixel_unshuffle(self.networks.posterior(image)[0], 2)).movedim(1, -1)

    def rebuild(self, numbers: Tensor) -> Tensor:
        """The image of quantised numbers."""
        return self.networks.reconstruct(pixel_shuffle(self.widen(numbers.movedim(-1, 1)), 2))

    def trained(self, image: Tensor, rng: RandomStreams) -> tuple[Tensor, Tensor]:
        """The image rebuilt, and no divergence: codes need no prior."""
        return self.rebuild(self.quantiser(self.numbers(image))), image.new_zeros(())

    def standardise(self, images: Tensor, batch: int = 500) -> None:
        """Codes are what they are."""

    def encode(self, image: Tensor) -> Tensor:
        """The codes of an image in [0, 1], as numbers (n, 1, height / 8, width / 8)."""
        return self.quantiser.index(self.numbers(image))[:, None].to(image.dtype)

    def decode(self, codes: Tensor) -> Tensor:
        """The image of codes, in [0, 1]."""
        return self.rebuild(self.quantiser.value(codes[:, 0].round().long()).to(codes.dtype)).clamp(0, 1)
