"""Where images and captions come from: a folder, or a data set in parquet or on the hub."""

import errno
import hashlib
import json
import os
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from tmatch.conditioning.base import has_surrogates
from tmatch.data.images import read_image
from tmatch.extras import needs_extra
from tmatch.hub import first_line
from tmatch.ranks import rank_and_world_size

SAMPLED, LETTERS = 32, 8
"""Rows by which a source is known again, and letters for each."""
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".jfif")
T = TypeVar("T")
SILENCE = 5.0
"""Seconds that may pass before it is said what takes so long."""


class Unusable(ValueError):
    """A row that cannot be used, and why: it is skipped and listed."""


@dataclass(frozen=True)
class Row:
    """An image, as its file holds it, and its captions."""

    key: str
    image: bytes
    captions: tuple[str, ...]


class Source(ABC):
    """Rows in an order that does not change; any thread may read any of them."""

    name: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def key(self, index: int) -> str:
        """What a row is called, whether it can be read or not."""

    @abstractmethod
    def read(self, index: int) -> Row:
        """A row; `Unusable` where it cannot be used, and OSError where it is the machine that fails."""

    @abstractmethod
    def listed(self, rows: range) -> str:
        """A digest of what the source lists for some rows: their names and captions, and not their images."""

    @property
    def contents(self) -> str:
        """A few letters for each of some rows, by which a source is known again where it lies elsewhere, or was mended.

        Rows that cannot be used have dashes.
        """
        count = min(len(self), SAMPLED)
        return "".join(self._letters(k * len(self) // count) for k in range(count))

    def _letters(self, index: int) -> str:
        try:
            row = self.read(index)
            read_image(BytesIO(row.image))
        except ValueError:
            return "-" * LETTERS
        return digest([row.image, row.captions])[:LETTERS]


def texts(value: object) -> tuple[str, ...]:
    """The captions of a row: a text, or a list of them."""
    found: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in found):
        raise Unusable("its caption is not a text")
    captions = tuple(text.strip() for text in found if text.strip())
    if not captions:
        raise Unusable("its caption is empty")
    if any(map(has_surrogates, captions)):
        raise Unusable("its caption has half of a letter, an unpaired surrogate")
    return captions


class FolderSource(Source):
    """The images that `metadata.jsonl` lists: {"file_name": ..., "text": ...}, where text may be several.

    Captions may stand in another `column` than text.
    """

    def __init__(self, folder: Path, column: str = "text") -> None:
        file = folder / "metadata.jsonl"
        if not file.is_file():
            raise ValueError(
                f"{folder} has no metadata.jsonl; give it a line "
                '{"file_name": "cat.png", "text": "a cat"} for each image.'
            )
        self.name = str(folder)
        self.folder = folder.resolve()
        self.lines = [line for line in file.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
        self.column = column

    def __len__(self) -> int:
        return len(self.lines)

    def key(self, index: int) -> str:
        return f"metadata.jsonl, image {index + 1}"

    def listed(self, rows: range) -> str:
        return digest([self.column, *self.lines[rows.start : rows.stop]])

    def read(self, index: int) -> Row:
        row = parsed(self.lines[index])
        name = row.get("file_name")
        if not isinstance(name, str):
            raise Unusable("it has no file_name")
        if self.column not in row:
            raise Unusable(f"{name} has no {self.column}; --text-column names another")
        captions = texts(row[self.column])
        return Row(name, bytes_within(self.folder, name), captions)


def only(images: Sequence[str]) -> str:
    """The image of a row."""
    if not images:
        raise Unusable("it has no image")
    if len(images) > 1:
        raise Unusable(f"it has several images, {' and '.join(images)}: leave one")
    return images[0]


class TableSource(Source):
    """A data set of the `datasets` library, with a column of images and one of captions."""

    def __init__(self, name: str, table: Any, image: str, text: str) -> None:  # noqa: ANN401
        with needs_extra("A data set in parquet or on the hub", "t2i"):
            from datasets import Image
        require_columns(name, table.column_names, (image, text))
        self.name = name
        self.table = table.select_columns([image, text])
        if isinstance(table.features[image], Image):
            self.table = self.table.cast_column(image, Image(decode=False))
        self.columns = (image, text)

    def __len__(self) -> int:
        return len(self.table)

    def key(self, index: int) -> str:
        return f"row {index}"

    def listed(self, rows: range) -> str:
        return digest(chain(self.columns, _captions(self.table.select(rows), self.columns[1])))

    def read(self, index: int) -> Row:
        try:
            row = self.table[index]
        except Exception as error:  # a damaged page of a table makes its library raise about anything
            if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            raise Unusable(f"its row cannot be read: {first_line(error)}") from error
        image, captions = (row[column] for column in self.columns)
        if isinstance(image, dict):  # the library's way to keep an image: its bytes, or where its file is
            path = image.get("path")
            image = image.get("bytes") or (None if path is None else _file_bytes(Path(path), path))
        if not isinstance(image, bytes):
            raise Unusable("it has no image")
        return Row(self.key(index), image, texts(captions))


def require_columns(name: str, there: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks one."""
    for column in columns:
        if column not in there:
            raise ValueError(
                f"{name} has no column '{column}'; name one of {', '.join(there)} by --image-column or --text-column."
            )


def _captions(table: Any, column: str) -> Iterator[list[Any]]:  # noqa: ANN401
    """The captions of a table, many at a time, as far as they can be read; rows that cannot be are listed later."""
    try:
        for part in table.select_columns([column]).with_format("arrow").iter(10_000):
            yield part.column(0).to_pylist()
    except Exception as error:  # a damaged page of a table makes its library raise about anything
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise


def bytes_within(folder: Path, name: str) -> bytes:
    """The contents of a file of a folder, which may not lead out of it."""
    file = Path(os.path.realpath(folder / name))  # which goes along with circles of links
    if folder not in file.parents:
        linked = folder in Path(os.path.normpath(folder / name)).parents
        raise Unusable(f"{name} is {'a link to what is ' if linked else ''}outside of the folder")
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "The folder is gone", str(folder))
    return _file_bytes(file, name)


def _file_bytes(file: Path, name: str) -> bytes:
    """The contents of a file; a machine that fails is not the fault of a row."""
    try:
        regular = stat.S_ISREG(file.stat().st_mode)
        content = file.read_bytes() if regular else b""
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP):
            raise Unusable(f"{name} cannot be read: {error.strerror}") from error
        raise
    except ValueError as error:  # a name that no file can have
        raise Unusable(f"{name!r} cannot be read: {error}") from error
    if not regular:
        raise Unusable(f"{name} is not a file")
    return content


def told(parts: Iterable[T], doing: str, things: str) -> Iterator[T]:
    """The same parts; where they take long, the first process says now and then on stderr how many there were."""
    due = time.monotonic() + SILENCE
    for number, part in enumerate(parts):
        if time.monotonic() > due:
            due = time.monotonic() + 6 * SILENCE
            if rank_and_world_size()[0] == 0:
                print(f"tmatch: {doing}: {number:,} {things} so far.", file=sys.stderr, flush=True)
        yield part


def digest(parts: Iterable[Any]) -> str:
    """SHA-256 of what a source lists, a line each."""
    total = hashlib.sha256()
    for number, part in enumerate(parts):
        total.update((b"\n" if number else b"") + repr(part).encode())
    return total.hexdigest()


def decoded(text: bytes) -> str:
    """A caption, as its file holds it."""
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unusable("its caption is not UTF-8") from error


def parsed(line: bytes) -> dict[str, Any]:
    """A row of JSON."""
    try:
        row = json.loads(decoded(line))
    except (json.JSONDecodeError, RecursionError) as error:
        raise Unusable(f"it is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise Unusable("it is not a JSON object")
    return row
