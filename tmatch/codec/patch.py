"""Images to tokens and back."""

from dataclasses import dataclass

from torch import Tensor

from tmatch.tensors import State, merge, positive_int, require_tensor, split


def require_images(images: Tensor, multiple: int = 1) -> None:
    """Reject a batch that is not (batch, 3, height, width), floating point, with sides divisible by `multiple`."""
    shape = tuple(images.shape)
    if images.ndim != 4 or shape[1] != 3:
        hint = ": move the channels first with images.movedim(-1, 1)" if images.ndim == 4 and shape[-1] == 3 else ""
        hint = ": repeat the channel with images.expand(-1, 3, -1, -1)" if images.ndim == 4 and shape[1] == 1 else hint
        raise ValueError(f"Images must have shape (batch, 3, height, width); got {shape}{hint}.")
    if not images.is_floating_point():
        raise ValueError(f"Images must be floating point in [0, 1]; got {images.dtype}: divide 8-bit values by 255.")
    if any(side % multiple for side in shape[2:]):
        raise ValueError(f"The height and width of images must be divisible by {multiple}; got {shape}.")


def require_unit_range(images: Tensor) -> None:
    """Reject values outside [0, 1], up to rounding."""
    low, high = (x.item() for x in images.aminmax())
    if not -1e-3 <= low <= high <= 1 + 1e-3:
        how = "use (images + 1) / 2" if -1.001 < low < 0 and high < 1.001 else "rescale them, as in images / 255"
        raise ValueError(f"Images must be in [0, 1]; got values from {low:g} to {high:g}: {how}.")


@dataclass(frozen=True)
class Patchify:
    """Cuts an image (batch, channels, height, width) into the tokens of a state; sides must divide by the patch."""

    patch: tuple[int, int] = (2, 2)

    def __post_init__(self) -> None:
        for side in self.patch:
            positive_int("Each side of a patch", side)

    def encode(self, image: Tensor) -> State:
        """(b, c, h, w) -> (b, h/p, w/q, p q c)."""
        require_tensor("An image", image)
        return merge(image.movedim(1, -1), self.patch)

    def decode(self, x: State) -> Tensor:
        """(b, h/p, w/q, p q c) -> (b, c, h, w)."""
        return split(x, self.patch).movedim(-1, 1)
