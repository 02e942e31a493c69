"""Distances between the distribution of generated images and that of real images, in the latents of the codec."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from tmatch.codec import Codec
from tmatch.data import CaptionedImages
from tmatch.data.encode import BATCH_SIZE, encode_cached, states_key

_CHUNK = 1000  # rows whose distances to all other rows are in memory at once
_WIDEST = 4096  # numbers in a latent: the covariance and its decomposition are computed in full


@dataclass(frozen=True, eq=False)
class Moments:
    """The mean (d,) and covariance (d, d) of a distribution, in float64."""

    mean: Tensor
    covariance: Tensor

    @cached_property
    def root(self) -> Tensor:
        """The symmetric square root of the covariance."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return vectors * values.clamp(min=0).sqrt() @ vectors.mT


def frechet_distance(a: Moments, b: Moments) -> float:
    """|m_a - m_b|^2 + Tr(C_a + C_b - 2 (C_a^1/2 C_b C_a^1/2)^1/2), of Gaussians with these moments (Frechet, 1957)."""
    cross = torch.linalg.eigvalsh(a.root @ b.covariance @ a.root).clamp(min=0).sqrt().sum()
    spread = a.covariance.trace() + b.covariance.trace() - 2 * cross
    return ((a.mean - b.mean).square().sum() + spread).item()


def mean_distance(x: Tensor, y: Tensor) -> float:
    """E|X - Y| over all pairs of a row of x (n, d) and a row of y (m, d)."""
    return sum(torch.cdist(part, y).sum().item() for part in x.split(_CHUNK)) / (len(x) * len(y))


@dataclass(frozen=True, eq=False)
class LatentSample:
    """Vectors x (n, d) in float64, n > 1, and what the distances need to know about them, computed once."""

    x: Tensor

    @cached_property
    def moments(self) -> Moments:
        """The mean and the unbiased covariance."""
        return Moments(self.x.mean(0), torch.atleast_2d(self.x.T.cov()))

    @cached_property
    def spread(self) -> float:
        """The mean distance of two different rows, unbiased for E|X - X'|."""
        return mean_distance(self.x, self.x) * len(self.x) / (len(self.x) - 1)


def energy_distance(a: LatentSample, b: LatentSample) -> float:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'|, unbiased: negative for some samples of equal distributions."""
    return 2 * mean_distance(a.x, b.x) - a.spread - b.spread


def frechet(images: Tensor, prompts: Sequence[Any], reference: CaptionedImages | None, codec: Codec) -> dict[str, Any]:
    """The Frechet distance of Gaussians fitted to the latents; it decreases with the number of images."""
    generated, real = _samples(images, reference, codec)
    if (width := generated.x.shape[1]) > _WIDEST:
        raise ValueError(
            f"Latents of {width:,} numbers are too large for the covariance of frechet (at most {_WIDEST:,}); use the "
            "metric energy."
        )
    return {"frechet_distance": _rounded(frechet_distance(real.moments, generated.moments))}


def energy(images: Tensor, prompts: Sequence[Any], reference: CaptionedImages | None, codec: Codec) -> dict[str, Any]:
    """The energy distance of the latents, about 0 for equal distributions whatever the number of images."""
    return {"energy_distance": _rounded(energy_distance(*_samples(images, reference, codec)))}


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def _samples(images: Tensor, reference: CaptionedImages | None, codec: Codec) -> tuple[LatentSample, LatentSample]:
    """The latents of generated images and of the reference."""
    if codec.codebook_size is not None:
        raise ValueError(
            "The model's autoencoder is discrete, and codes have no distances; use another metric than frechet and "
            "energy."
        )
    if reference is None:
        raise ValueError("The metrics frechet and energy compare with real images; pass a reference.")
    if min(len(images), len(reference)) < 2:
        raise ValueError(
            f"The metrics frechet and energy need at least two images and two real ones; got {len(images)} and "
            f"{len(reference)}."
        )
    device = _device(codec)
    sample = _sample(torch.cat([codec.encode(part.to(device)) for part in images.split(BATCH_SIZE)]))
    real = _real_sample(_Reference(states_key(codec, reference, device), reference, codec))
    if sample.x.shape[1] != real.x.shape[1]:
        raise ValueError("The images and the real images differ in size; compare images of one size.")
    return sample, real


@dataclass(frozen=True)
class _Reference:
    """Real images and the codec that encodes them; equal if their latents are."""

    key: str
    images: CaptionedImages = field(compare=False)
    codec: Codec = field(compare=False)


@lru_cache(maxsize=2)
def _real_sample(reference: _Reference) -> LatentSample:
    """The latents of a reference, kept because tuning evaluates many settings against one."""
    return _sample(encode_cached(reference.codec, reference.images, _device(reference.codec)))


def _sample(states: Tensor) -> LatentSample:
    if not states.isfinite().all():
        raise ValueError("The autoencoder encodes some images as NaN or infinity; load it in float32.")
    return LatentSample(states.flatten(1).cpu().double())


def _device(codec: Codec) -> torch.device:
    return next((weight.device for weight in codec.parameters()), torch.device("cpu"))
