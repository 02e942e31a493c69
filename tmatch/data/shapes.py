"""`shapes`: captioned images of coloured shapes that test the six skills of GenEval; a function of (seed, index)."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from tmatch.data.encode import CaptionedImages
from tmatch.rng import RandomStreams

SIZE = 32
SHAPES = ("circle", "cross", "square", "triangle")
COLOURS = {
    "blue": (0.20, 0.35, 0.95),
    "green": (0.15, 0.75, 0.20),
    "purple": (0.70, 0.25, 0.85),
    "red": (0.90, 0.15, 0.15),
    "white": (0.95, 0.95, 0.95),
    "yellow": (0.95, 0.85, 0.15),
}
BACKGROUND = (0.10, 0.10, 0.12)
NUMBERS = ("two", "three", "four")
RELATIONS = ("left of", "right of", "above", "below")
SKILLS = ("single object", "two objects", "counting", "colours", "position", "colour attribution")
PLURALS = ("circles", "crosses", "squares", "triangles")
VOCABULARY = ("a", "above", "and", "below", "left", "of", "right", *NUMBERS, *COLOURS, *SHAPES, *PLURALS)
"""All words that occur in captions."""
OBJECTS = 4
"""The maximum number of objects per image."""

_SIZES = (4.6, 5.8)  # range of the radius in pixels, for one or two objects
_SMALL = (4.0, 5.0)  # for three or four objects
_GAP = 2.0  # minimum distance in pixels between the bounding boxes of two objects
_MARGIN = 2.0  # minimum difference in pixels between horizontal and vertical offset, for a clear relation
_CANDIDATES = 128  # candidate positions per image

PALETTE = torch.tensor(list(COLOURS.values()))
TRIANGLE_DROP = 0.31  # offset of a triangle's centre of mass below the middle of its box, relative to its size


def signed_distance(shape: Tensor, x: Tensor, y: Tensor, size: Tensor) -> Tensor:
    """Distance in pixels to the outline, negative inside; y points down. All arguments broadcast."""
    circle = (x**2 + y**2).sqrt() - size
    square = torch.maximum(x.abs(), y.abs()) - 0.88 * size
    low = y - TRIANGLE_DROP * size  # from the middle of its box to its centre of mass
    triangle = torch.maximum(low, math.sqrt(0.75) * x.abs() - 0.5 * low) - 0.62 * size
    cross = torch.minimum(*(torch.maximum(a.abs() - size, b.abs() - 0.36 * size) for a, b in ((x, y), (y, x))))
    shape = shape.expand(torch.broadcast_shapes(shape.shape, circle.shape))
    stacked = torch.stack(torch.broadcast_tensors(circle, cross, square, triangle))
    return stacked.take_along_dim(shape[None], dim=0)[0]


AREA = torch.tensor([math.pi, 8 * 0.36 - 4 * 0.36**2, (2 * 0.88) ** 2, 3 * math.sqrt(3) * 0.62**2])
"""The area of each shape of size 1."""


def coverage(shape: Tensor, centre: Tensor, size: Tensor) -> Tensor:
    """The fraction of each pixel that a shape covers (anti-aliasing): (..., SIZE, SIZE), for centres (..., 2)."""
    pixels = torch.arange(SIZE) + 0.5
    y = pixels[:, None] - centre[..., 0, None, None]
    x = pixels[None, :] - centre[..., 1, None, None]
    return (0.5 - signed_distance(shape[..., None, None], x, y, size[..., None, None])).clamp(0, 1)


@dataclass(frozen=True)
class Scenes:
    """The contents of n images: up to OBJECTS objects each (shape -1 if absent), and the captions."""

    shape: Tensor  # (n, OBJECTS)
    colour: Tensor  # (n, OBJECTS)
    centre: Tensor  # (n, OBJECTS, 2), row and column in pixels
    size: Tensor  # (n, OBJECTS)
    skill: Tensor  # (n,)
    captions: list[str]

    @property
    def withheld(self) -> Tensor:
        """Whether the caption is one of 36, out of 216 for colour attribution, that training can withhold.

        One second colour is withheld for each pair of shapes and first colour, so training still sees every word.
        """
        attribution = self.skill == SKILLS.index("colour attribution")
        second = (self.colour[:, 0] + self.shape[:, 0] + self.shape[:, 1]) % len(COLOURS)
        return attribution & (self.colour[:, 1] == second)

    def render(self) -> Tensor:
        """The images, (n, 3, SIZE, SIZE) in [0, 1]."""
        image = torch.tensor(BACKGROUND)[:, None, None].expand(len(self.captions), 3, SIZE, SIZE)
        for k in range(OBJECTS):
            present = (self.shape[:, k] >= 0)[:, None, None]
            cover = coverage(self.shape[:, k].clamp(min=0), self.centre[:, k], self.size[:, k]) * present
            ink = PALETTE[self.colour[:, k]][:, :, None, None]
            image = image + cover[:, None] * (ink - image)
        return image


def relation(a: Tensor, b: Tensor) -> str:
    """The position of an object at a, (row, column), relative to one at b, along the axis of larger distance."""
    down, right = (a - b).tolist()
    if abs(right) > abs(down):
        return "left of" if right < 0 else "right of"
    return "above" if down < 0 else "below"


def caption(skill: str, shapes: Sequence[str], colours: Sequence[str], relation: str) -> str:
    """The caption of a scene; pairs are named in alphabetical order, so that each meaning has one caption."""
    if skill == "single object":
        return f"a {shapes[0]}"
    if skill == "two objects":
        return f"a {shapes[0]} and a {shapes[1]}"
    if skill == "counting":
        return f"{NUMBERS[len(shapes) - 2]} {PLURALS[SHAPES.index(shapes[0])]}"
    if skill == "colours":
        return f"a {colours[0]} {shapes[0]}"
    if skill == "position":
        return f"a {shapes[0]} {relation} a {shapes[1]}"
    return f"a {colours[0]} {shapes[0]} and a {colours[1]} {shapes[1]}"


def _pick(u: Tensor, count: int) -> Tensor:
    """An integer in [0, count), from a uniform number in [0, 1)."""
    return (u * count).long()


def _extent(size: Tensor) -> Tensor:
    """Half the side of a box that contains any shape."""
    return 1.08 * size


def _one_or_two(rng: RandomStreams, size: Tensor, dominant: Tensor) -> Tensor:
    """Centres anywhere, with a gap between the boxes; where `dominant`, the relation is unambiguous."""
    inset = _extent(size)[:, None, :2, None]
    centre = inset + (SIZE - 2 * inset) * rng.uniform(_CANDIDATES, 2, 2)
    away = (centre[:, :, 0] - centre[:, :, 1]).abs()  # (n, candidates, 2)
    fits = (away > 2 * _extent(size[:, None, :1]) + _GAP).any(-1)
    fits &= ~dominant[:, None] | ((away[..., 0] - away[..., 1]).abs() > _MARGIN + 1)
    chosen = fits.float().argmax(1)
    assert fits.any(1).all(), "every image has a valid candidate"
    return centre[torch.arange(len(centre)), chosen]


def _three_or_four(rng: RandomStreams, size: Tensor) -> Tensor:
    """Centres in different quadrants of the image, in random order, each at a random position in its quadrant."""
    order = rng.uniform(OBJECTS).argsort(1)
    corner = torch.stack((order // 2, order % 2), dim=-1) * (SIZE / 2)
    inset = _extent(size)[..., None] + _GAP / 2
    return corner + inset + (SIZE / 2 - 2 * inset) * rng.uniform(OBJECTS, 2)


@dataclass(frozen=True)
class Shapes:
    """An infinite data set, in which (seed, index) determines the image."""

    seed: int = 0

    def scenes(self, indices: Sequence[int] | Tensor) -> Scenes:
        """The contents of the images with these indices."""
        rng = RandomStreams.derive(self.seed, 0, indices)
        n = len(rng)
        skill = _pick(rng.uniform(), len(SKILLS))
        counting, position = skill == SKILLS.index("counting"), skill == SKILLS.index("position")
        alone = (skill == SKILLS.index("single object")) | (skill == SKILLS.index("colours"))
        count = torch.where(alone, 1, torch.where(counting, 2 + _pick(rng.uniform(), len(NUMBERS)), 2))

        first = _pick(rng.uniform(), len(SHAPES))
        other = (first + 1 + _pick(rng.uniform(), len(SHAPES) - 1)) % len(SHAPES)
        pair = torch.stack((torch.minimum(first, other), torch.maximum(first, other)), dim=1)
        same = (alone | counting)[:, None]
        shape = torch.where(same, first[:, None], pair)[:, [0, 1, 1, 1]]
        colour = _pick(rng.uniform(OBJECTS), len(COLOURS))
        colour = torch.where(counting[:, None], colour[:, :1], colour)

        many = (count > 2)[:, None]
        low, high = torch.where(many, _SMALL[0], _SIZES[0]), torch.where(many, _SMALL[1], _SIZES[1])
        size = (low + (high - low) * rng.uniform(1)).expand(n, OBJECTS)
        few = _one_or_two(rng, size.clamp(min=_SIZES[0]), position)
        quarters = _three_or_four(rng, size.clamp(max=_SMALL[1]))
        centre = torch.where(many[..., None], quarters, torch.cat((few, few), dim=1))
        shape = torch.where(torch.arange(OBJECTS) < count[:, None], shape, -1)
        captions = [self._caption(*row) for row in zip(skill, shape, colour, centre, strict=True)]
        return Scenes(shape, colour, centre, size, skill, captions)

    @staticmethod
    def _caption(skill: Tensor, shape: Tensor, colour: Tensor, centre: Tensor) -> str:
        shapes = [SHAPES[k] for k in shape if k >= 0]
        colours = [list(COLOURS)[k] for k in colour]
        return caption(SKILLS[int(skill)], shapes, colours, relation(centre[0], centre[1]))


Sentences = Literal["all", "trained", "withheld"]


class ShapeImages(CaptionedImages):
    """The first `count` images of a seed, optionally only those whose caption is withheld from training, or is not."""

    def __init__(self, seed: int, count: int, sentences: Sentences = "all") -> None:
        self.shapes = Shapes(seed)
        self.count = count
        self.sentences = sentences

    @property
    def index(self) -> list[int]:
        """The number of each image within its seed."""
        return self._chosen[0]

    @property
    def captions(self) -> list[str]:  # type: ignore[override]
        return self._chosen[1]

    @cached_property
    def _chosen(self) -> tuple[list[int], list[str]]:
        """Indices and captions, computed on first use."""
        index: list[int] = []
        captions: list[str] = []
        first = 0
        while len(index) < self.count:
            indices = torch.arange(first, first + 2000)
            first += len(indices)
            scenes = self.shapes.scenes(indices)
            wanted = (self.sentences == "all") | (scenes.withheld == (self.sentences == "withheld"))
            for k in wanted.nonzero().flatten().tolist()[: self.count - len(index)]:
                index.append(int(indices[k]))
                captions.append(scenes.captions[k])
        return index, captions

    def load(self, indices: Sequence[int]) -> Tensor:
        return self.shapes.scenes([self.index[k] for k in indices]).render()

    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self.shapes, self.index)).encode()).hexdigest()
