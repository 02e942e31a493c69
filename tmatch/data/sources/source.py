"""The interface of a source of images with captions, class labels or nothing, and helpers for reading rows."""

import errno
import hashlib
import json
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image
from torch import Tensor

from tmatch.conditioning.base import has_surrogates
from tmatch.config import MAX_COUNT
from tmatch.data.images import read_image

SAMPLED, LETTERS = 32, 8
"""Rows that identify a source, and the characters of each row's digest."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".jfif")
LARGEST_FILE = 2**30  # bytes; larger files are no images
Labels = Literal["auto", "folders", "none"]
"""Where class labels come from: what the source holds, its sub-folders even if it has captions, or no conditions."""


class Unusable(ValueError):
    """A row cannot be used: it is skipped and reported with this reason."""


@dataclass(frozen=True)
class Row:
    """An encoded image (the bytes of its file), and its captions, or the index of its class, or neither."""

    key: str
    image: bytes
    captions: tuple[str, ...] = ()
    label: int | None = None

    def decode(self, at_least: int | None = None) -> Image.Image:
        """The RGB image; `at_least` is that of `read_image`."""
        return read_image(BytesIO(self.image), at_least)


class Source(ABC):
    """Rows in a fixed order; any thread may read any row."""

    name: str
    captioned: bool = False
    """Whether rows have captions."""
    classes: tuple[str, ...] | None = None
    """Names of the classes, where rows have labels."""

    @property
    def conditions(self) -> str:
        """What its images are trained with, in words."""
        return conditions_in_words(self.captioned, self.classes)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def key(self, index: int) -> str:
        """The name of a row in reports, whether or not it can be read."""

    @abstractmethod
    def read(self, index: int) -> Row:
        """Read a row; raises `Unusable` if the row is at fault and OSError if the machine is."""

    @abstractmethod
    def listed(self, rows: range) -> str:
        """A digest of the names and of the captions or labels, but not of the images, of some rows."""

    @property
    def contents(self) -> str:
        """Short digests of a few rows, which identify a source that was moved or partly fixed; dashes if unusable."""
        count = min(len(self), SAMPLED)
        return "".join(self._letters(k * len(self) // count) for k in range(count))

    def _letters(self, index: int) -> str:
        try:
            row = self.read(index)
            row.decode()
        except ValueError:
            return "-" * LETTERS
        return row_digest([row.image, row.captions if row.label is None else row.label])[:LETTERS]


class Entry(NamedTuple):
    """A row without its image: the name of the image, and its captions, or the index of its class, or neither."""

    name: str
    captions: tuple[str, ...] = ()
    label: int | None = None


class LocalSource(Source):
    """Images on this machine, which can be read one by one, without their captions."""

    @abstractmethod
    def entry(self, index: int) -> Entry:
        """A row without its image; raises `Unusable` if the row is at fault."""

    @abstractmethod
    def load(self, name: str, size: int) -> Tensor:
        """The centre square of an image, (3, size, size), as uint8."""

    @abstractmethod
    def stamp(self, name: str) -> tuple[Any, ...]:
        """What changes when an image changes: name, size and time of its file; raises `Unusable` without a file."""


def conditions_in_words(captioned: bool, classes: Sequence[str] | None) -> str:
    """What images are trained with."""
    if captioned:
        return "with captions"
    return "without captions or labels" if classes is None else f"of {len(classes):,} classes"


def in_order(classes: Iterable[str]) -> list[str]:
    """The names of classes in their order: that of the numbers if all are numbers, and else of the alphabet."""
    names = sorted(set(classes))
    return sorted(names, key=int) if all(re.fullmatch(r"-?[0-9]+", name) for name in names) else names


def require_classes(name: str, classes: Sequence[str], labels: Sequence[int]) -> tuple[str, ...]:
    """The classes, of which there are several, each with an image; raises for other labels."""
    found = set(labels)
    if outside := sorted(label for label in found if not 0 <= label < len(classes)):
        raise ValueError(f"{name} has {len(classes)} classes, but an image with the label {outside[0]}; correct it.")
    if len(classes) < 2:
        raise ValueError(f"{name} has one class only: train without labels (--labels none, or data.labels none).")
    if empty := [names for label, names in enumerate(classes) if label not in found]:
        raise ValueError(f"{name} has no image of the class '{empty[0]}': add images, or remove the class.")
    return tuple(classes)


def as_captions(value: object) -> tuple[str, ...]:
    """The captions of a row, which holds a string or a list of strings."""
    found: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in found):
        raise Unusable("the caption is not a string")
    captions = tuple(text.strip() for text in found if text.strip())
    if not captions:
        raise Unusable("the caption is empty")
    if any(len(text) > MAX_COUNT for text in captions):
        raise Unusable(f"the caption is longer than {MAX_COUNT:,} characters")
    if any(map(has_surrogates, captions)):
        raise Unusable("the caption contains invalid Unicode (an unpaired surrogate)")
    return captions


def decode_caption(text: bytes) -> str:
    """The text of a caption file."""
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unusable("the caption is not UTF-8") from error


def parse_json(line: bytes) -> dict[str, Any]:
    """A row of JSON."""
    text = decode_caption(line)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"invalid JSON ({error})") from error
    if not isinstance(row, dict):
        raise Unusable("not a JSON object")
    return row


def single_image(images: Sequence[str]) -> str:
    """The only image of a row."""
    if not images:
        raise Unusable("no image")
    if len(images) > 1:
        raise Unusable(f"more than one image: {' and '.join(images)}")
    return images[0]


def require_inside(name: str, *folders: Path) -> Path:
    """The path of a file, which must lie in one of the folders; relative to the first one."""
    parent, base = os.path.split(os.path.join(folders[0], name))
    file = os.path.join(_real_folder(parent), base)
    file = os.path.realpath(file) if os.path.islink(file) else file  # tolerates circular links
    if not any(file.startswith(os.path.join(folder, "")) for folder in folders):
        raise Unusable(f"{name} is, or links to, a file outside the folder")
    return Path(file)


_real_folder = lru_cache(4096)(os.path.realpath)  # which looks at every folder on the way


def read_file(name: str, *folders: Path) -> bytes:
    """The contents of a file in one of the folders; errors of the machine, unlike those of the row, pass through."""
    file = require_inside(name, *folders)
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            raise Unusable(f"{name} is not a regular file, or larger than {LARGEST_FILE:,} bytes")
        return file.read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP):
            raise Unusable(f"{name} cannot be read: {error.strerror}") from error
        raise


def row_digest(parts: Iterable[Any]) -> str:
    """SHA-256 of the parts of a row or of a listing, one per line."""
    total = hashlib.sha256()
    for number, part in enumerate(parts):
        total.update((b"\n" if number else b"") + repr(part).encode())
    return total.hexdigest()
