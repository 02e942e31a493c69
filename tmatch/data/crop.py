"""The sizes that images are cut to."""

import math
from functools import cached_property
from typing import Literal, Self

from PIL import Image
from pydantic import Field, model_validator

from tmatch.config import Config

Size = tuple[int, int]
"""Height and width, in pixels."""


class Crop(Config):
    """Squares of `size` pixels from the middle, or buckets: rectangles of at most that area that waste less.

    The sides of a bucket divide by `multiple`, and none is more than `ratio` times the other.
    """

    kind: Literal["centre", "buckets"] = "centre"
    size: int = Field(default=256, gt=0)
    multiple: int = Field(default=16, gt=0)
    ratio: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    smallest: int = Field(default=16, gt=0)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.size % self.multiple:
            raise ValueError(f"The size of images divides by {self.multiple}, and {self.size} does not.")
        return self

    @cached_property
    def sizes(self) -> list[Size]:
        """All that images are cut to."""
        if self.kind == "centre":
            return [(self.size, self.size)]
        short = range(self.multiple, self.size + 1, self.multiple)
        pairs = [(side, self.size**2 // (side * self.multiple) * self.multiple) for side in short]
        tall = [(long, side) for side, long in pairs if long <= self.ratio * side]
        return sorted({*tall, *((side, long) for long, side in tall)})

    def choose(self, image: Image.Image) -> Size:
        """The size whose proportions are nearest to those of an image; the larger one where two are as near."""
        if min(image.size) < self.smallest:
            raise ValueError(f"it is {image.width} x {image.height} pixels, too small")
        proportion = math.log(image.height / image.width)
        return min(self.sizes, key=lambda size: (abs(math.log(size[0] / size[1]) - proportion), -size[0] * size[1]))
