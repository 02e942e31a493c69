"""Images to tokens and back."""

from dataclasses import dataclass

from torch import Tensor

from tmatch.tensors import State, merge, positive_int, split


@dataclass(frozen=True)
class Patchify:
    """Cuts an image (batch, channels, height, width) into the tokens of a state; any size that divides by the patch."""

    patch: tuple[int, int] = (2, 2)

    def __post_init__(self) -> None:
        for side in self.patch:
            positive_int("Each side of a patch", side)

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
