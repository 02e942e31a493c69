"""Captions that are already encoded."""

import pytest
import torch
from copies import Copies

from tmatch.conditioning import EmbeddedText


def captions(*lengths: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, 3, generator=generator).to(dtype) for length in lengths]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_captions_are_padded_and_keep_their_bits(dtype: torch.dtype) -> None:
    f = EmbeddedText(torch.ones(1, 3, dtype=dtype))
    given = [*captions(2, 5, dtype=dtype), f.null]
    found = f(given)
    assert found.tokens.dtype == torch.float32
    assert found.mask.sum(1).tolist() == [2, 5, 1]
    for caption, tokens, mask in zip(given, found.tokens, found.mask, strict=True):
        assert torch.equal(tokens[mask], caption.float())
        assert (tokens[~mask] == 0).all()


@pytest.mark.parametrize("dropped", [False, True])
def test_captions_move_to_a_device_in_one_copy(dropped: bool) -> None:
    """The meta device stands for a GPU: one copy for all captions in their own dtype, and one for the mask."""
    f = EmbeddedText(torch.ones(1, 3, dtype=torch.float16)).to("meta")
    with Copies("meta") as copies:
        found = f([*captions(2, 5, 3, 3, 1), *([f.null] if dropped else [])])
    assert copies.dtypes == [torch.float16, torch.bool]
    assert (found.tokens.device.type, found.mask.device.type) == ("meta", "meta")
    assert found.tokens.shape == (5 + dropped, 5, 3)


def test_captions_on_the_device_are_not_copied() -> None:
    f = EmbeddedText(torch.ones(1, 3)).to("meta")
    moved = [caption.to("meta") for caption in captions(2, 5)]
    with Copies("meta") as copies:
        f([*moved, f.null])
    assert copies.dtypes == [torch.bool]


def test_captions_of_several_dtypes_lose_nothing() -> None:
    fine = captions(2, dtype=torch.float32)
    assert torch.equal(EmbeddedText(torch.zeros(1, 3))([*captions(2), *fine]).tokens[1], fine[0])


def test_text_is_rejected() -> None:
    with pytest.raises(ValueError, match="encode the text first"):
        EmbeddedText(torch.zeros(1, 3))(["a caption"])
