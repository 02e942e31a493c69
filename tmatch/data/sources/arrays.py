"""Images in an array, and their labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from tmatch.data.batches import permutation
from tmatch.data.images import center_crop
from tmatch.data.sources.source import Entry, Labels, LocalSource, Row, require_classes, row_digest


class Arrays(NamedTuple):
    """Images (n, height, width, 1 or 3) of bytes, and the index of the class of each, if it has one."""

    images: np.ndarray
    labels: np.ndarray | None = None
    classes: Sequence[str] | None = None
    """Names of the classes; by default their indices."""
    missing: str = ""
    """Why there are no labels, where the layout has them."""


@dataclass(frozen=True)
class ArrayRow(Row):
    """An image as the bytes of its pixels, grey or RGB."""

    size: tuple[int, int] = (0, 0)  # width and height

    def decode(self, at_least: int | None = None) -> Image.Image:
        grey = len(self.image) == self.size[0] * self.size[1]
        return Image.frombytes("L" if grey else "RGB", self.size, self.image).convert("RGB")


class ArraySource(LocalSource):
    """The images of some arrays; a row is named by its index in them.

    Rows are in a fixed random order, so that any range of them holds all classes.
    """

    def __init__(self, name: str, files: Sequence[Path], arrays: Arrays, labels: Labels = "auto") -> None:
        if labels == "folders":
            raise ValueError(f"{name} is not a folder of images: its labels are its own (--labels auto), or none.")
        self.name = name
        self.files = files
        self.images = _checked(name, arrays.images)
        self.order = permutation(len(self.images), "images").tolist()
        self.labels: list[int] | None = None
        if arrays.missing and labels == "auto":
            raise ValueError(f"{name}: {arrays.missing}; add it, or train without labels (--labels none).")
        if arrays.labels is not None and labels == "auto":
            self.labels = _as_labels(name, arrays.labels, len(self.images))
            names = arrays.classes or [str(label) for label in range(max(self.labels, default=0) + 1)]
            self.classes = require_classes(name, names, self.labels)

    def __len__(self) -> int:
        return len(self.images)

    def key(self, index: int) -> str:
        return f"image {self.order[index]}"

    def listed(self, rows: range) -> str:
        return row_digest(map(self.entry, rows))

    def entry(self, index: int) -> Entry:
        row = self.order[index]
        return Entry(str(row), label=None if self.labels is None else self.labels[row])

    def read(self, index: int) -> Row:
        return self._row(self.order[index])

    def load(self, name: str, size: int) -> Tensor:
        return center_crop(self._row(int(name)).decode(), size, size)

    def stamp(self, name: str) -> tuple[Any, ...]:
        return name, *self._stamps

    def _row(self, row: int) -> ArrayRow:
        """The row with this index in the arrays."""
        image, label = self.images[row], None if self.labels is None else self.labels[row]
        return ArrayRow(f"image {row}", image.tobytes(), (), label, (image.shape[1], image.shape[0]))

    @cached_property
    def _stamps(self) -> tuple[tuple[str, int, int], ...]:
        stats = [(file, file.stat()) for file in self.files]
        return tuple((str(file.resolve()), stat.st_size, stat.st_mtime_ns) for file, stat in stats)


def _checked(name: str, images: np.ndarray) -> np.ndarray:
    """Images with an axis of channels."""
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:3]:
        raise ValueError(
            f"The images of {name} have the shape {images.shape} and the type {images.dtype}; make them uint8, and "
            "(images, height, width), (images, height, width, 1) or (images, height, width, 3)."
        )
    return images


def _as_labels(name: str, labels: np.ndarray, count: int) -> list[int]:
    """Labels as integers, one per image."""
    if labels.size != count:
        raise ValueError(f"{name} has {count:,} images, but {labels.size:,} labels; their numbers must agree.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"The labels of {name} must be integers, not {labels.dtype}; store the index of each class.")
    found: list[int] = labels.reshape(-1).tolist()
    return found
