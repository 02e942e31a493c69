import pytest
import torch

from tmatch import Patchify
from tmatch.tensors import merge, split


@pytest.mark.parametrize(
    ("patch", "size"), [((2, 2), (32, 32)), ((2, 2), (6, 10)), ((2, 8), (4, 16)), ((1, 1), (3, 5))]
)
def test_decode_inverts_encode(patch: tuple[int, int], size: tuple[int, int]) -> None:
    image = torch.randn(2, 4, *size)
    x = Patchify(patch).encode(image)
    assert x.shape == (2, size[0] // patch[0], size[1] // patch[1], patch[0] * patch[1] * 4)
    assert torch.equal(Patchify(patch).decode(x), image)


def test_a_token_is_a_patch_of_the_image() -> None:
    image = torch.randn(1, 4, 8, 8)
    token = Patchify((2, 2)).encode(image)[0, 1, 3]
    assert torch.equal(token.view(2, 2, 4).movedim(-1, 0), image[0, :, 2:4, 6:8])


def test_merge_joins_neighbours() -> None:
    x = torch.randn(2, 4, 8, 3)
    assert torch.equal(split(merge(x, (1, 4)), (1, 4)), x)
    assert torch.equal(merge(x, (1, 4))[:, 2, 1], x[:, 2, 4:8].flatten(1))
    line = torch.randn(2, 6, 3)
    assert torch.equal(split(merge(line, (2,)), (2,)), line)


def test_impossible_shapes_are_rejected() -> None:
    with pytest.raises(ValueError, match="Each side of a patch"):
        Patchify((0, 2))
    with pytest.raises(ValueError, match=r"\(33, 32\) is not divisible into patches of \(2, 2\)"):
        Patchify().encode(torch.zeros(1, 4, 33, 32))
    with pytest.raises(ValueError, match="must be a tensor"):
        Patchify().encode(torch.zeros(1, 4, 32, 32).numpy())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not divisible into patches"):
        Patchify().encode(torch.zeros(4, 32, 32))
    with pytest.raises(ValueError, match=r"patches of \(1, 4\)"):
        merge(torch.zeros(1, 4, 6, 3), (1, 4))
    with pytest.raises(ValueError, match="grid"):
        merge(torch.zeros(1, 4, 3), (1, 4))
