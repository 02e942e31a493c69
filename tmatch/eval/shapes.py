"""An exact checker for `shapes`: detects the objects of an image and compares them with a caption."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from tmatch.data.shapes import (
    AREA,
    BACKGROUND,
    COLOURS,
    NUMBERS,
    PALETTE,
    RELATIONS,
    SHAPES,
    SIZE,
    TRIANGLE_DROP,
    coverage,
    relation,
)

_SPECK = 8  # pixels: smaller regions are not objects
_OVERLAP = 0.7  # least intersection over union of an object with its shape
_INK = 0.35  # largest RGB distance of an object's colour from the palette


@dataclass(frozen=True)
class DetectedObject:
    """An object in an image; an unknown shape or colour is '?'."""

    shape: str
    colour: str
    centre: Tensor  # (row, column)


def _ink(images: Tensor) -> Tensor:
    """How far each pixel is from the background towards its nearest palette colour, (n, SIZE, SIZE)."""
    ground = torch.tensor(BACKGROUND)
    towards = PALETTE - ground  # (colours, 3)
    off = (images.movedim(1, -1) - ground)[..., None, :]
    amount = (off * towards).sum(-1) / towards.square().sum(-1)
    stray = (off - amount[..., None] * towards).norm(dim=-1)
    return amount.gather(-1, stray.argmin(-1, keepdim=True))[..., 0].clamp(0, 1)


def _components(inked: Tensor) -> Tensor:
    """Labels of 4-connected regions, 0 elsewhere: (n, SIZE, SIZE)."""
    labels = (torch.arange(1, SIZE * SIZE + 1).view(SIZE, SIZE) * inked).float()
    while True:
        rows = max_pool2d(labels[:, None], (3, 1), 1, (1, 0))[:, 0]
        columns = max_pool2d(labels[:, None], (1, 3), 1, (0, 1))[:, 0]
        grown = torch.maximum(rows, columns) * inked
        if torch.equal(grown, labels):
            return labels.long()
        labels = grown


def _recognise(image: Tensor, region: Tensor) -> DetectedObject:
    """The shape and colour that best fit a region of an image (3, SIZE, SIZE)."""
    ground = torch.tensor(BACKGROUND)
    mean = image[:, region].mean(1)
    core = region & ((image - ground[:, None, None]).norm(dim=0) > 0.9 * (mean - ground).norm())
    apart = (PALETTE - image[:, core].mean(1)).norm(dim=1)
    colour = int(apart.argmin())
    towards = PALETTE[colour] - ground
    around = max_pool2d(region[None, None].float(), 3, 1, 1)[0, 0]
    amount = ((image - ground[:, None, None]) * towards[:, None, None]).sum(0) / towards.square().sum()
    cover = amount.clamp(0, 1) * around

    pixels = torch.arange(SIZE) + 0.5
    mass = torch.stack(((cover.sum(1) * pixels).sum(), (cover.sum(0) * pixels).sum())) / cover.sum()
    size = (cover.sum() / AREA).sqrt()
    centre = mass.repeat(len(SHAPES), 1)
    centre[SHAPES.index("triangle"), 0] -= TRIANGLE_DROP * size[SHAPES.index("triangle")]
    template = coverage(torch.arange(len(SHAPES)), centre, size)
    overlap = torch.minimum(template, cover).sum((1, 2)) / torch.maximum(template, cover).sum((1, 2))
    shape = int(overlap.argmax())
    return DetectedObject(
        SHAPES[shape] if overlap[shape] > _OVERLAP else "?",
        list(COLOURS)[colour] if apart[colour] < _INK else "?",
        centre[shape],
    )


def detect(images: Tensor) -> list[list[DetectedObject]]:
    """The objects in each image, (n, 3, SIZE, SIZE) in [0, 1]."""
    if images.shape[1:] != (3, SIZE, SIZE):
        raise ValueError(f"Images of shapes must have shape (n, 3, {SIZE}, {SIZE}); got {tuple(images.shape)}.")
    labels = _components(_ink(images) > 0.5)
    found: list[list[DetectedObject]] = []
    for image, regions in zip(images, labels, strict=True):
        names, areas = regions.unique(return_counts=True)
        kept = [k for k, area in zip(names, areas, strict=True) if k > 0 and area >= _SPECK]
        found.append([_recognise(image, regions == k) for k in kept])
    return found


_COLOUR, _SHAPE = f"(?:({'|'.join(COLOURS)}) )?", f"({'|'.join(SHAPES)})"
_COUNTED = re.compile(f"({'|'.join(NUMBERS)}) {_SHAPE}e?s")
_ONE = re.compile(f"a {_COLOUR}{_SHAPE}")
_PAIR = re.compile(f"a {_COLOUR}{_SHAPE} (and|{'|'.join(RELATIONS)}) a {_COLOUR}{_SHAPE}")


def _is(found: DetectedObject, shape: str, colour: str | None) -> bool:
    return found.shape == shape and colour in (None, found.colour)


def satisfies(objects: Sequence[DetectedObject], caption: str) -> bool:
    """Whether the objects are exactly those of the caption, placed as it says."""
    if counted := _COUNTED.fullmatch(caption):
        number, shape = NUMBERS.index(counted[1]) + 2, counted[2]
        return Counter(found.shape for found in objects) == {shape: number}
    if one := _ONE.fullmatch(caption):
        return len(objects) == 1 and _is(objects[0], one[2], one[1])
    if pair := _PAIR.fullmatch(caption):
        return len(objects) == 2 and any(
            _is(a, pair[2], pair[1]) and _is(b, pair[5], pair[4]) and pair[3] in ("and", relation(a.centre, b.centre))
            for a, b in ((objects[0], objects[1]), (objects[1], objects[0]))
        )
    raise ValueError(f"'{caption}' is not a caption of shapes, such as 'a red circle and a blue square'.")


def skill_of(caption: str) -> str:
    """The skill that a caption tests."""
    if _COUNTED.fullmatch(caption):
        return "counting"
    if one := _ONE.fullmatch(caption):
        return "colours" if one[1] else "single object"
    pair = _PAIR.fullmatch(caption)
    assert pair is not None, "`satisfies` rejects what is not a caption"
    return "position" if pair[3] != "and" else "colour attribution" if pair[1] else "two objects"


def check(images: Tensor, captions: Sequence[str]) -> Tensor:
    """Whether each image satisfies its caption, (n,)."""
    if len(images) != len(captions):
        raise ValueError(f"Got {len(images)} images and {len(captions)} captions; pass one caption per image.")
    return torch.tensor([satisfies(objects, text) for objects, text in zip(detect(images), captions, strict=True)])
