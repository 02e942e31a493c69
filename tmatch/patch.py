"""Images to tokens and back."""

from dataclasses import dataclass
from math import prod

from einops import rearrange
from torch import Tensor

from tmatch.tensors import State, whole


def merge(x: State, patch: tuple[int, ...]) -> State:
    """Join neighbouring tokens: (b, r, c, d) -> (b, r/p, c/q, p q d); for sequences (b, n, d) -> (b, n/p, p d)."""
    grid = x.shape[1:-1]
    if len(patch) != len(grid):
        raise ValueError(f"A patch {patch} does not fit a {len(grid)}-dimensional grid of tokens {tuple(grid)}.")
    if any(p < 1 or size % p for size, p in zip(grid, patch, strict=True)):
        raise ValueError(f"A grid of {tuple(grid)} tokens cannot be cut into patches of {patch}: it does not divide.")
    if len(patch) == 1:
        return rearrange(x, "b (n p) d -> b n (p d)", p=patch[0])
    return rearrange(x, "b (r p) (c q) d -> b r c (p q d)", p=patch[0], q=patch[1])


def split(x: State, patch: tuple[int, ...]) -> State:
    """Undo `merge`."""
    if x.ndim != len(patch) + 2 or x.shape[-1] % prod(patch):
        raise ValueError(f"Tokens {tuple(x.shape)} cannot be split into patches of {patch}.")
    if len(patch) == 1:
        return rearrange(x, "b n (p d) -> b (n p) d", p=patch[0])
    return rearrange(x, "b r c (p q d) -> b (r p) (c q) d", p=patch[0], q=patch[1])


@dataclass(frozen=True)
class Patchify:
    """Cuts an image (batch, channels, height, width) into the tokens of a state; any size that divides by the patch."""

    patch: tuple[int, int] = (2, 2)

    def __post_init__(self) -> None:
        for side in self.patch:
            whole("Each side of a patch", side)

    def encode(self, image: Tensor) -> State:
        """(b, c, h, w) -> (b, h/p, w/q, p q c)."""
        if image.ndim != 4:
            raise ValueError(f"An image batch has shape (batch, channels, height, width); got {tuple(image.shape)}.")
        height, width = image.shape[-2:]
        if height % self.patch[0] or width % self.patch[1]:
            raise ValueError(
                f"A {height}x{width} image cannot be cut into {self.patch[0]}x{self.patch[1]} patches; "
                "crop or resize it to a multiple of the patch."
            )
        return merge(image.movedim(1, -1), self.patch)

    def decode(self, x: State) -> Tensor:
        """The image a state stands for."""
        return split(x, self.patch).movedim(-1, 1)
