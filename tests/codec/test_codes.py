import pytest
import torch

from tmatch.codec import CodeAutoencoder
from tmatch.codec.codes import FiniteScalar


@pytest.mark.parametrize("levels", [(8, 5, 5), (2,), (4, 4, 4, 4), (3, 2)])
def test_codes_and_values_correspond_one_to_one(levels: tuple[int, ...]) -> None:
    quantiser = FiniteScalar(levels)
    codes = torch.arange(quantiser.codebook_size)
    values = quantiser.value(codes)
    assert len(values.unique(dim=0)) == quantiser.codebook_size
    z = torch.randn(50_000, len(levels), generator=torch.Generator().manual_seed(0)) * 1.5
    assert torch.allclose(quantiser(z), quantiser.value(quantiser.index(z)), atol=1e-6)
    assert quantiser.index(z).unique().tolist() == codes.tolist(), "every code can be reached"


def test_gradients_pass_straight_through_the_rounding() -> None:
    z = torch.zeros(5, 2, requires_grad=True)
    FiniteScalar((5, 5))(z).sum().backward()
    assert (z.grad > 0).all()


def test_codes_are_integers_on_a_grid_and_decode_to_the_trained_reconstruction() -> None:
    torch.manual_seed(0)
    autoencoder, image = CodeAutoencoder((4, 4, 3), channels=4, width=8), torch.rand(2, 3, 32, 32)
    codes = autoencoder.encode(image)
    assert codes.shape == (2, 1, 4, 4)
    assert torch.equal(codes, codes.round())
    assert 0 <= codes.min() <= codes.max() < autoencoder.codebook_size == 48
    expected = autoencoder.reconstruct(autoencoder.quantiser(autoencoder.project(image))).clamp(0, 1)
    torch.testing.assert_close(autoencoder.decode(codes), expected, atol=1e-5, rtol=1e-5)
