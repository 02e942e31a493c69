"""A small KL autoencoder with a downsampling factor of 4."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle, silu

from tmatch.codec.patch import require_images
from tmatch.rng import RandomStreams


class Residual(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x))))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
        self.conv_1, self.conv_2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.conv_2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_2(silu(self.norm_2(self.conv_1(silu(self.norm_1(x))))))


class Autoencoder(nn.Module):
    """z ~ N(mean(x), std(x)^2), x = decode(z), with latents (n, channels, height / 4, width / 4).

    `scale` and `shift` (channels,) standardise the latents; they are measured once, after training.
    """

    codebook_size: None = None  # latents are continuous
    factor = 4

    def __init__(self, channels: int = 4, width: int = 48, blocks: int = 1) -> None:
        super().__init__()
        wide = 2 * width
        fine, coarse = ([Residual(w) for _ in range(blocks)] for w in (width, wide))
        self.encode_fine = nn.Sequential(nn.Conv2d(12, width, 3, padding=1), *fine)
        self.encode_coarse = nn.Sequential(
            nn.Conv2d(4 * width, wide, 1), *coarse, nn.GroupNorm(8, wide), nn.SiLU(), nn.Conv2d(wide, 2 * channels, 1)
        )
        fine, coarse = ([Residual(w) for _ in range(blocks)] for w in (width, wide))
        self.decode_coarse = nn.Sequential(
            nn.Conv2d(channels, wide, 3, padding=1), *coarse, nn.Conv2d(wide, 4 * width, 1)
        )
        self.decode_fine = nn.Sequential(*fine, nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 12, 3, padding=1))
        self.scale = nn.Buffer(torch.ones(channels))
        self.shift = nn.Buffer(torch.zeros(channels))

    def posterior(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the latent, before standardising."""
        fine = self.encode_fine(pixel_unshuffle(2 * image - 1, 2))
        mean, log_variance = self.encode_coarse(pixel_unshuffle(fine, 2)).chunk(2, dim=1)
        return mean, log_variance.clamp(-30, 10)

    def trained(self, image: Tensor, rng: RandomStreams) -> tuple[Tensor, Tensor]:
        """The reconstruction from z ~ q(z | x), and the mean KL divergence of q from N(0, I)."""
        mean, log_variance = self.posterior(image)
        reconstruction = self.reconstruct(mean + (log_variance / 2).exp() * rng.normal(*mean.shape[1:]))
        return reconstruction, ((mean.square() + log_variance.exp() - 1 - log_variance) / 2).mean()

    def reconstruct(self, z: Tensor) -> Tensor:
        """The image of a latent before standardising."""
        fine = pixel_shuffle(self.decode_coarse(z), 2)
        return (pixel_shuffle(self.decode_fine(fine), 2) + 1) / 2

    @torch.no_grad()
    def standardise(self, images: Tensor, batch: int = 500) -> None:
        """Measure `shift` and `scale`, so that the latents of these images have mean 0 and variance 1."""
        z = torch.cat([self.posterior(part)[0] for part in images.split(batch)])
        self.shift.copy_(z.mean((0, 2, 3)))
        self.scale.copy_(z.std((0, 2, 3)))

    def encode(self, image: Tensor) -> Tensor:
        """The standardised latent of an image in [0, 1], (n, channels, height / 4, width / 4)."""
        require_images(image, self.factor)
        return (self.posterior(image)[0] - self.shift[:, None, None]) / self.scale[:, None, None]

    def decode(self, latent: Tensor) -> Tensor:
        """The image of a standardised latent, in [0, 1]."""
        return self.reconstruct(latent * self.scale[:, None, None] + self.shift[:, None, None]).clamp(0, 1)
