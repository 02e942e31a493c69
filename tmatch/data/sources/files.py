"""Images in the files of a folder: with captions, in classes, or without either."""

import errno
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from tmatch.data.batches import permutation
from tmatch.data.images import load_image
from tmatch.data.sources.source import (
    IMAGE_SUFFIXES,
    Entry,
    LocalSource,
    Row,
    Unusable,
    as_captions,
    decode_caption,
    in_order,
    parse_json,
    read_file,
    require_classes,
    require_inside,
    row_digest,
    single_image,
)

METADATA, LABEL = "metadata.jsonl", "label"
LINKED = "/"
"""Ends the name of a row that is a link to a folder."""


class FileSource(LocalSource):
    """Images in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = folder.resolve()

    def read(self, index: int) -> Row:
        name, captions, label = self.entry(index)
        return Row(name, self.read_bytes(name), captions, label)

    def load(self, name: str, size: int) -> Tensor:
        return load_image(self.path(name), size)

    def stamp(self, name: str) -> tuple[Any, ...]:
        file = self.path(name)
        if not file.is_file():
            raise Unusable(f"{name} does not exist")
        stat = file.stat()
        return str(file), stat.st_size, stat.st_mtime_ns

    def path(self, name: str) -> Path:
        """The path of a file, which must lie in the folder."""
        return require_inside(name, self.folder)

    def read_bytes(self, name: str) -> bytes:
        """The contents of a file in the folder."""
        if not self.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "The source folder no longer exists", str(self.folder))
        return read_file(name, self.folder)


class MetadataSource(FileSource):
    """The images that `metadata.jsonl` lists, one {"file_name": ..., "text": ...} per line.

    A text may be a list of captions; `column` names another key for captions, None reads none. If the lines have a
    `label` and no caption, it is the class, and the rows are in a fixed random order.
    """

    def __init__(self, folder: Path, column: str | None = "text") -> None:
        super().__init__(folder)
        lines = (folder / METADATA).read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
        self.lines = [line for line in lines if line.strip()]
        self.column = column if any(_may_have_caption(line, column) for line in self.lines) else None
        self.captioned = self.column is not None
        self.numbers, self.index = list(range(len(self.lines))), {}
        if column is not None and not self.captioned:
            labels = [label for line in self.lines if (label := _label(line)) is not None]
            self.index = {name: k for k, name in enumerate(in_order(labels))}
            if labels:
                self.numbers = permutation(len(self.lines), "images").tolist()
                self.lines = [self.lines[k] for k in self.numbers]
                self.classes = require_classes(str(folder), list(self.index), [self.index[label] for label in labels])

    def __len__(self) -> int:
        return len(self.lines)

    def key(self, index: int) -> str:
        return f"{METADATA}, image {self.numbers[index] + 1}"

    def listed(self, rows: range) -> str:
        return row_digest([self.column, *self.lines[rows.start : rows.stop]])

    def entry(self, index: int) -> Entry:
        row = parse_json(self.lines[index])
        name = row.get("file_name")
        if not isinstance(name, str):
            raise Unusable("no file_name")
        if self.classes is not None:
            if (label := _label(self.lines[index])) is None:
                raise Unusable(f"{name} has no '{LABEL}', as other images have")
            return Entry(name, label=self.index[label])
        if self.column is None:
            return Entry(name)
        if self.column not in row:
            advice = "set --text-column if captions have another key, or --labels none to train without captions"
            raise Unusable(f"{name} has no '{self.column}'; {advice}")
        return Entry(name, as_captions(row[self.column]))


def _may_have_caption(line: bytes, column: str | None) -> bool:
    """Whether a line of `metadata.jsonl` has a key that could be a caption."""
    try:
        row = parse_json(line)
    except Unusable:
        return False
    others = [row[key] for key in row.keys() - {"file_name"}]
    return column in row or (LABEL not in row and any(isinstance(value, str | list) for value in others))


def _label(line: bytes) -> str | None:
    """The class that a line of `metadata.jsonl` names, by a string or a number."""
    try:
        label = parse_json(line).get(LABEL)
    except Unusable:
        return None
    return str(label) if isinstance(label, str | int) else None


class PairSource(FileSource):
    """All images below a folder, each with its caption in a .txt file of the same name.

    A row is one string, to save memory: its name, and the suffixes of its files.
    """

    captioned = True

    def __init__(self, folder: Path, rows: Sequence[str]) -> None:
        super().__init__(folder)
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, index: int) -> str:
        return self._row(index)[0]

    def listed(self, rows: range) -> str:
        return row_digest(map(self._listed, rows))

    def entry(self, index: int) -> Entry:
        name, images, caption = self._row(index)
        require_no_link(name)
        return Entry(single_image(images), as_captions(decode_caption(self.read_bytes(caption or f"{name}.txt"))))

    def _row(self, index: int) -> tuple[str, list[str], str | None]:
        """The name, the images and the caption file of a row."""
        name, images, captions = split_row(self.rows[index])
        return name, images, captions[-1] if captions else None

    def _listed(self, index: int) -> tuple[tuple[str, list[str]], bytes]:
        """The names of a row's images, and its caption, which is empty if it cannot be read."""
        name, images, caption = self._row(index)
        try:
            return (name, images), b"" if caption is None else self.read_bytes(caption)
        except Unusable:  # reported when the row is read
            return (name, images), b""


class ImageFiles(FileSource):
    """Images without captions, by name; if they have classes, the first folder of a name is the class.

    They are in a fixed random order, so that any range of them holds all classes.
    """

    def __init__(self, folder: Path, names: Sequence[str], classes: tuple[str, ...] | None = None) -> None:
        super().__init__(folder)
        self.names = [names[k] for k in permutation(len(names), "images").tolist()]
        self.classes = classes
        self.index = {name: k for k, name in enumerate(classes or ())}

    def __len__(self) -> int:
        return len(self.names)

    def key(self, index: int) -> str:
        return self.names[index]

    def listed(self, rows: range) -> str:
        return row_digest(self.names[rows.start : rows.stop])

    def entry(self, index: int) -> Entry:
        name = self.names[index]
        require_no_link(name)
        return Entry(name, label=self.index.get(name.partition("/")[0]))


def require_no_link(name: str) -> None:
    """Raise for a row that is a link to a folder."""
    if name.endswith(LINKED):
        raise Unusable("links to folders are not followed; pass the linked folder as a source of its own")


def split_row(row: str) -> tuple[str, list[str], list[str]]:
    """The name of a row of `list_files`, its images, and its .txt files."""
    name, *suffixes = row.split("\0")
    images = [name + suffix for suffix in suffixes if suffix.lower() in IMAGE_SUFFIXES]
    return name, images, [name + suffix for suffix in suffixes if suffix.lower() == ".txt"]


def contains_images(folder: Path) -> bool:
    """Whether a folder or one of its subfolders contains an image."""
    return any(split_row(row)[1] for row in list_files(str(folder)))


def list_files(folder: str) -> Iterator[str]:
    """File names without suffix, each followed by the suffixes of its files, and links to folders.

    Rows sort by name, since the separator sorts before every character of a name.
    """
    kept = frozenset((".txt", *IMAGE_SUFFIXES))
    for parent, folders, files in os.walk(folder, onerror=_raise):
        prefix = "" if parent == folder else os.path.relpath(parent, folder) + "/"
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = {name for name in folders if os.path.islink(f"{parent}/{name}")}
        found: dict[str, list[str]] = {}
        for file in sorted(chain(files, (name for name in folders if name not in linked))):
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in kept and not file.startswith("."):
                found.setdefault(stem, []).append(suffix)
        yield from ("\0".join((prefix + stem, *suffixes)) for stem, suffixes in found.items())
        yield from (prefix + name + LINKED for name in linked)


def _raise(error: OSError) -> None:
    raise error
