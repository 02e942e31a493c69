"""Distances between distributions: laws of the two distances, then of the metrics that compute them from images."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tmatch as tm
from tmatch.codec import Codec
from tmatch.codec.saved import shipped_autoencoder
from tmatch.data import CaptionedImages, ShapeImages
from tmatch.eval import LOWER_IS_BETTER, METRICS, score
from tmatch.eval.captions import captions
from tmatch.eval.latents import LatentSample, Moments, energy, energy_distance, frechet, frechet_distance, mean_distance

D = 6
ROTATION = torch.linalg.qr(tm.RandomStreams([1], dtype=torch.float64).normal(D, D)[0]).Q
SCALES = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.1, 0.0], dtype=torch.float64)
PIXELS = Codec(tm.Patchify((8, 8)))


def normal(seed: int, count: int, width: int = D) -> Tensor:
    """Rows of N(0, I), in float64."""
    return tm.RandomStreams([seed], dtype=torch.float64).normal(count, width)[0]


def moments(seed: int, rank: int = D) -> Moments:
    """Random moments, whose covariance has this rank."""
    x = normal(seed, rank + 1) * (1 + seed)
    return Moments(x[0], x[1:].T @ x[1:] / rank)


@pytest.mark.parametrize("rank", [1, 3, D])
def test_the_frechet_distance_is_a_squared_distance_whatever_the_rank(rank: int) -> None:
    a, b = moments(1, rank), moments(2)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-5)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-6)
    assert frechet_distance(a, b) > 1
    shift = normal(3, 1)[0]
    shifted = Moments(a.mean + shift, a.covariance)
    assert frechet_distance(a, shifted) == pytest.approx(shift.square().sum().item(), rel=1e-5)
    for x, y in ((a, b), (b, moments(4, rank))):
        x_turned, y_turned = (Moments(ROTATION @ z.mean, ROTATION @ z.covariance @ ROTATION.T) for z in (x, y))
        assert frechet_distance(x_turned, y_turned) == pytest.approx(frechet_distance(x, y), rel=1e-6)


def test_the_frechet_distance_of_gaussians_has_a_closed_form() -> None:
    """Covariances with common eigenvectors: sum (s_a - s_b)^2; in the plane: Tr M^1/2 = (Tr M + 2 det^1/2 M)^1/2."""
    mean = torch.zeros(D, dtype=torch.float64)
    a, b = (Moments(mean, ROTATION * s**2 @ ROTATION.T) for s in (SCALES, SCALES.roll(2)))
    assert frechet_distance(a, b) == pytest.approx((SCALES - SCALES.roll(2)).square().sum().item(), rel=1e-6)
    a, b = (Moments(z.mean[:2], z.covariance[:2, :2]) for z in (moments(1), moments(2)))
    product = a.covariance @ b.covariance
    root_trace = (product.trace() + 2 * product.det().sqrt()).sqrt()
    expected = (a.mean - b.mean).square().sum() + (a.covariance + b.covariance).trace() - 2 * root_trace
    assert frechet_distance(a, b) == pytest.approx(expected.item(), rel=1e-9)


def test_the_moments_of_a_sample_are_those_of_its_distribution() -> None:
    x = normal(5, 20_000) * SCALES @ ROTATION + 3
    found = LatentSample(x).moments
    torch.testing.assert_close(found.mean, torch.full_like(SCALES, 3), atol=0.06, rtol=0)
    torch.testing.assert_close(found.covariance, ROTATION.T * SCALES**2 @ ROTATION, atol=0.15, rtol=0)
    few = torch.stack([LatentSample(part).moments.covariance for part in x[:4000].split(4)]).mean(0)
    torch.testing.assert_close(few, ROTATION.T * SCALES**2 @ ROTATION, atol=0.4, rtol=0, msg="unbiased")


def test_the_energy_distance_of_point_masses_is_twice_their_distance() -> None:
    a, b = torch.zeros(3, D).double(), torch.full((5, D), 2.0).double()
    assert energy_distance(LatentSample(a), LatentSample(b)) == pytest.approx(2 * 2 * math.sqrt(D), abs=1e-6)
    assert energy_distance(LatentSample(b), LatentSample(b)) == pytest.approx(0, abs=1e-6)


def test_the_energy_distance_is_unbiased_and_increases_with_a_shift() -> None:
    """In one dimension, for N(0, 1) and N(d, 1): 2 E|N(d, 2)| - 2 E|N(0, 2)|."""
    shifts, count = (0.0, 0.5, 1.0, 2.0), 1000
    expected = [2 * (2 / math.sqrt(math.pi) * (math.exp(-(d**2) / 4) - 1) + d * math.erf(d / 2)) for d in shifts]
    for size in (2, 10):
        x, y = (normal(seed, count * size, 1).split(size) for seed in (6, 7))
        for d, exact in zip(shifts, expected, strict=True):
            mean = sum(energy_distance(LatentSample(a), LatentSample(b + d)) for a, b in zip(x, y, strict=True)) / count
            assert mean == pytest.approx(exact, abs=0.1)
    x, y = normal(8, 3000), normal(9, 1200)
    found = [energy_distance(LatentSample(x), LatentSample(y + d)) for d in shifts]
    assert abs(found[0]) < 0.01
    assert found == sorted(found)
    turned = energy_distance(LatentSample(x @ ROTATION), LatentSample((y + 1) @ ROTATION))
    assert turned == pytest.approx(found[2], rel=1e-9)


def test_the_energy_distance_sees_what_two_moments_do_not() -> None:
    """+-1 has the mean and the variance of N(0, 1)."""
    x, signs = LatentSample(normal(10, 4000, 1)), LatentSample(normal(11, 4000, 1).sign())
    assert frechet_distance(x.moments, signs.moments) < 0.01
    assert energy_distance(x, signs) > 0.1


def test_distances_in_chunks_are_those_of_all_pairs() -> None:
    x, y = normal(12, 2500), normal(13, 70)
    direct = (x[:, None] - y).norm(dim=-1).mean().item()
    assert mean_distance(x, y) == pytest.approx(direct, rel=1e-9)
    assert mean_distance(y, x) == pytest.approx(direct, rel=1e-9)


class Brightened(CaptionedImages):
    """Shapes that are brighter by a constant; counts how often it is loaded."""

    def __init__(self, seed: int, count: int, by: float = 0.0) -> None:
        self.images, self.by, self.loaded = ShapeImages(seed, count), by, 0
        self.captions = self.images.captions

    def load(self, indices: Sequence[int]) -> Tensor:
        self.loaded += 1
        return self.images.load(indices) * (1 - self.by) + self.by

    def fingerprint(self) -> str:
        return f"{self.images.fingerprint()} {self.by}"


@pytest.mark.parametrize("autoencoder", [True, False])
@pytest.mark.parametrize(("name", "floor"), [("frechet", None), ("energy", 0.0)])
def test_the_distance_grows_with_the_difference_of_the_images(
    name: str, floor: float | None, autoencoder: bool
) -> None:
    """In the latents of the codec, whatever it is; 16 x 16 pixels keep the covariance of pixels small."""
    codec = Codec(tm.Patchify(), shipped_autoencoder() if autoencoder else None)

    class Small(Brightened):
        def load(self, indices: Sequence[int]) -> Tensor:
            images = super().load(indices)
            return images if autoencoder else images[..., ::4, ::4]

    reference = Small(5, 300)
    found = [score(METRICS[name](Small(6, 150, by).load(range(150)), [], reference, codec)) for by in (0.0, 0.1, 0.3)]
    assert found == sorted(found)
    assert found[2] > 1.1 * abs(found[0])
    if floor is not None:
        assert found[0] == pytest.approx(floor, abs=0.05 * found[2])


def test_latents_are_those_of_the_codec() -> None:
    """The Frechet distance from a shift of all pixels by d: states are in [-1, 1], so that pixels differ by 2 d."""
    images = ShapeImages(5, 40).load(range(40))[..., ::4, ::4] * 0.8
    found = frechet(images + 0.1, [], Tensors(images), PIXELS)
    assert list(found) == ["frechet_distance"]
    assert found["frechet_distance"] == pytest.approx(3 * 8 * 8 * 0.2**2, rel=1e-3)


class Tensors(CaptionedImages):
    """Images in memory."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.captions = images, [""] * len(images)

    def load(self, indices: Sequence[int]) -> Tensor:
        return self.images[list(indices)]

    def fingerprint(self) -> str:
        return str((tuple(self.images.shape), self.images.double().sum().item()))


def test_a_reference_is_encoded_once_and_only_for_metrics_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMATCH_CACHE", str(tmp_path))
    first, again, other = Brightened(7, 20), Brightened(7, 20), Brightened(7, 20, 0.1)
    images, codec = first.images.load(range(20)), Codec(tm.Patchify(), shipped_autoencoder())
    captions(images, first.captions, first, codec)
    assert first.loaded == 0
    frechet(images, [], first, codec)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1, "for the next process"
    shutil.rmtree(tmp_path)
    energy(images, [], again, codec)
    assert (first.loaded, again.loaded) == (1, 0), "the same images"
    assert energy(images, [], other, codec) != energy(images, [], first, codec)
    assert other.loaded == 1
    codec.autoencoder = shipped_autoencoder()
    torch.nn.init.zeros_(codec.autoencoder.encode_fine[0].weight)
    frechet(images, [], first, codec)
    assert first.loaded == 2, "another codec"


class Opaque:
    """An autoencoder without weights that anything could identify."""

    codebook_size, factor = None, 1

    def encode(self, images: Tensor) -> Tensor:
        return images

    decode = encode


class Overflowing(torch.nn.Identity):
    """An autoencoder that overflows."""

    codebook_size, factor = None, 1

    def encode(self, images: Tensor) -> Tensor:
        return images * torch.inf

    decode = encode


def test_images_that_cannot_be_compared_are_rejected() -> None:
    images, reference = torch.rand(3, 3, 32, 32), ShapeImages(5, 4)
    discrete = Codec(tm.Patchify((1, 1)), shipped_autoencoder("shapes-codes"))
    for given, real, codec, words in (
        (images, None, PIXELS, "pass a reference"),
        (images, reference, discrete, "discrete"),
        (images[:1], reference, PIXELS, "at least two images and two real ones; got 1 and 4"),
        (images, ShapeImages(5, 1), PIXELS, "got 3 and 1"),
        (images[..., :16, :], reference, PIXELS, "differ in size"),
        (images, reference, Codec(tm.Patchify(), Opaque()), "torch.nn.Module"),
        (images, reference, Codec(tm.Patchify(), Overflowing()), "NaN"),
    ):
        for metric in (frechet, energy):
            with pytest.raises(ValueError, match=words):
                metric(given, [], real, codec)
    wide = Tensors(torch.rand(2, 3, 64, 64))
    with pytest.raises(ValueError, match=r"12,288 numbers are too large .* use the metric energy"):
        frechet(wide.images, [], wide, PIXELS)
    assert math.isfinite(score(energy(wide.images, [], wide, PIXELS)))


def test_every_metric_has_a_score_and_a_direction() -> None:
    """Real images score better than noise, with the metrics that say how good an image is."""
    prompts, reference = ShapeImages(5, 12), ShapeImages(6, 30)
    codec = Codec(tm.Patchify(), shipped_autoencoder())
    assert METRICS.keys() >= LOWER_IS_BETTER
    for name, metric in METRICS.items():
        real, noise = (
            score(metric(images, prompts.captions, reference, codec))
            for images in (prompts.load(range(12)), tm.RandomStreams(range(12)).uniform(3, 32, 32))
        )
        assert math.isfinite(real), name
        if name in {"captions", *LOWER_IS_BETTER}:
            assert (real < noise) if name in LOWER_IS_BETTER else (real > noise), name
