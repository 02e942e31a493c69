"""The sizes to which images are cropped."""

import math
from functools import cached_property
from typing import Literal, Self

from PIL import Image
from pydantic import Field, model_validator

from tmatch.config import Config, Dimension

Size = tuple[int, int]
"""Height and width, in pixels."""


class Crop(Config):
    """Centre squares of `size` pixels, or buckets: rectangles of at most the same area with other aspect ratios.

    The sides of a bucket are multiples of `multiple`, and their ratio is at most `ratio`.
    """

    kind: Literal["centre", "buckets"] = "centre"
    size: Dimension = 256
    multiple: Dimension = 16
    ratio: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    smallest: Dimension = 16

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.size % self.multiple:
            raise ValueError(f"The image size must be a multiple of {self.multiple}; got {self.size}.")
        return self

    @cached_property
    def sizes(self) -> list[Size]:
        """All sizes of cropped images."""
        if self.kind == "centre":
            return [(self.size, self.size)]
        short = range(self.multiple, self.size + 1, self.multiple)
        pairs = [(side, self.size**2 // (side * self.multiple) * self.multiple) for side in short]
        tall = [(long, side) for side, long in pairs if long <= self.ratio * side]
        return sorted({*tall, *((side, long) for long, side in tall)})

    def choose(self, image: Image.Image) -> Size:
        """The size with the nearest aspect ratio; the larger one in case of a tie."""
        if min(image.size) < self.smallest:
            raise ValueError(f"the image is too small ({image.width} x {image.height} pixels)")
        aspect = math.log(image.height / image.width)
        return min(self.sizes, key=lambda size: (abs(math.log(size[0] / size[1]) - aspect), -size[0] * size[1]))
