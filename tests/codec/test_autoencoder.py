import pytest
import torch
from torch.distributions import Normal, kl_divergence

from tmatch import RandomStreams
from tmatch.codec import Autoencoder, Codec, Patchify
from tmatch.data.shapes import Shapes

IMAGES = Shapes(0).scenes(range(40)).render()


def small() -> Autoencoder:
    return Autoencoder(channels=4, width=8)


@pytest.mark.parametrize("size", [(32, 32), (8, 20)])
def test_latents_are_a_quarter_the_size(size: tuple[int, int]) -> None:
    f = small()
    latent = f.encode(torch.rand(2, 3, *size))
    assert latent.shape == (2, 4, size[0] // 4, size[1] // 4)
    assert f.decode(latent).shape == (2, 3, *size)


def test_standardised_latents_have_mean_0_and_variance_1_and_decode_as_before() -> None:
    f = small()
    before = f.decode(f.encode(IMAGES))
    f.standardise(IMAGES, batch=7)
    z = f.encode(IMAGES)
    torch.testing.assert_close(z.mean((0, 2, 3)), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.std((0, 2, 3)), torch.ones(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(f.decode(z), before, atol=1e-4, rtol=1e-4)


def test_training_samples_the_posterior_and_measures_its_divergence() -> None:
    f, image = small(), IMAGES[:1].expand(400, -1, -1, -1)
    mean, log_variance = f.posterior(IMAGES[:1])
    posterior = Normal(mean, log_variance.exp().sqrt())
    seen: list[torch.Tensor] = []
    f.reconstruct = lambda z: seen.append(z)
    divergence = f.trained(image, RandomStreams(range(400)))[1]
    expected = kl_divergence(posterior, Normal(torch.zeros_like(mean), torch.ones_like(mean))).mean()
    torch.testing.assert_close(divergence, expected, rtol=1e-4, atol=1e-6)
    z = (seen[0] - posterior.mean) / posterior.stddev
    assert z.mean().abs() < 5 / z.numel() ** 0.5
    assert (z.var() - 1).abs() < 5 * (2 / z.numel()) ** 0.5


def test_the_standardisation_is_saved_with_the_weights() -> None:
    f, other = small(), small()
    f.standardise(IMAGES)
    other.load_state_dict(f.state_dict())
    assert torch.equal(other.encode(IMAGES), f.encode(IMAGES))


def test_decoded_images_are_in_range() -> None:
    image = small().decode(10 * torch.randn(2, 4, 8, 8))
    assert image.min() >= 0
    assert image.max() <= 1


def test_a_codec_rejects_images_of_a_wrong_layout_or_range() -> None:
    codec = Codec(Patchify((2, 2)))
    image = torch.rand(1, 3, 4, 4)
    torch.testing.assert_close(codec.decode(codec.encode(image)), image)
    for wrong, words in (
        (image.movedim(1, -1), "channels first"),
        ((255 * image).to(torch.uint8), "divide 8-bit values by 255"),
        (255 * image, r"must be in \[0, 1\]"),
        (2 * image - 1, r"must be in \[0, 1\]"),
        (image * torch.nan, r"must be in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=words):
            codec.encode(wrong)
    with pytest.raises(ValueError, match="divisible by 4"):
        small().encode(torch.zeros(1, 3, 30, 32))
