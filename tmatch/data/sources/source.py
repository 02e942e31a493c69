"""The interface of a source of captioned images, and helpers for reading rows."""

import errno
import hashlib
import json
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from tmatch.conditioning.base import has_surrogates
from tmatch.data.images import read_image

SAMPLED, LETTERS = 32, 8
"""Rows that identify a source, and the characters of each row's digest."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".jfif")


class Unusable(ValueError):
    """A row cannot be used: it is skipped and reported with this reason."""


@dataclass(frozen=True)
class Row:
    """An encoded image (the bytes of its file) and its captions."""

    key: str
    image: bytes
    captions: tuple[str, ...]


class Source(ABC):
    """Rows in a fixed order; any thread may read any row."""

    name: str

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
        """A digest of the names and captions, but not of the images, of some rows."""

    @property
    def contents(self) -> str:
        """Short digests of a few rows, which identify a source that was moved or partly fixed; dashes if unusable."""
        count = min(len(self), SAMPLED)
        return "".join(self._letters(k * len(self) // count) for k in range(count))

    def _letters(self, index: int) -> str:
        try:
            row = self.read(index)
            read_image(BytesIO(row.image))
        except ValueError:
            return "-" * LETTERS
        return row_digest([row.image, row.captions])[:LETTERS]


def as_captions(value: object) -> tuple[str, ...]:
    """The captions of a row, which holds a string or a list of strings."""
    found: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in found):
        raise Unusable("the caption is not a string")
    captions = tuple(text.strip() for text in found if text.strip())
    if not captions:
        raise Unusable("the caption is empty")
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
    try:
        row = json.loads(decode_caption(line))
    except (json.JSONDecodeError, RecursionError) as error:
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


def read_file(file: Path, name: str) -> bytes:
    """The contents of a file; errors of the machine, unlike those of the row, pass through."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise Unusable(f"{name} is not a regular file")
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
