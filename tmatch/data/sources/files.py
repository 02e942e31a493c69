"""Images in the files of a folder, with captions in a `metadata.jsonl` or in .txt files."""

import errno
import os
from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tmatch.data.progress import progress_bar
from tmatch.data.sources.source import (
    IMAGE_SUFFIXES,
    Row,
    Source,
    Unusable,
    as_captions,
    decode_caption,
    parse_json,
    read_file,
    require_inside,
    row_digest,
    single_image,
)

METADATA = "metadata.jsonl"
LINKED = "/"
"""Ends the name of a row that is a link to a folder."""


class FileSource(Source):
    """Images in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = folder.resolve()

    @abstractmethod
    def entry(self, index: int) -> tuple[str, tuple[str, ...]]:
        """The name of a row's image, relative to the folder, and its captions."""

    def read(self, index: int) -> Row:
        name, captions = self.entry(index)
        return Row(name, self.read_bytes(name), captions)

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

    A text may be a list of captions; `column` names another key for captions.
    """

    def __init__(self, folder: Path, column: str = "text") -> None:
        super().__init__(folder)
        lines = (folder / METADATA).read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
        self.lines = [line for line in lines if line.strip()]
        self.column = column

    def __len__(self) -> int:
        return len(self.lines)

    def key(self, index: int) -> str:
        return f"{METADATA}, image {index + 1}"

    def listed(self, rows: range) -> str:
        return row_digest([self.column, *self.lines[rows.start : rows.stop]])

    def entry(self, index: int) -> tuple[str, tuple[str, ...]]:
        row = parse_json(self.lines[index])
        name = row.get("file_name")
        if not isinstance(name, str):
            raise Unusable("no file_name")
        if self.column not in row:
            raise Unusable(f"{name} has no '{self.column}'; set --text-column if captions have another key")
        return name, as_captions(row[self.column])


class PairSource(FileSource):
    """All images below a folder, each with its caption in a .txt file of the same name.

    A row is one string, to save memory: its name, and the suffixes of its files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows = sorted(progress_bar(_rows(str(folder)), f"Listing {folder}"))
        if not any(self._listed(index)[1] for index in range(len(self))):
            raise ValueError(
                f"{folder} has no captioned images; add a {METADATA} with a line "
                '{"file_name": "cat.png", "text": "a cat"} for each image, or a .txt file of the same name.'
            )

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, index: int) -> str:
        return self._row(index)[0]

    def listed(self, rows: range) -> str:
        return row_digest(map(self._listed, rows))

    def entry(self, index: int) -> tuple[str, tuple[str, ...]]:
        name, images, caption = self._row(index)
        if name.endswith(LINKED):
            raise Unusable("links to folders are not followed; pass the linked folder as a source of its own")
        image = single_image(images)
        return image, as_captions(decode_caption(self.read_bytes(caption or f"{name}.txt")))

    def _row(self, index: int) -> tuple[str, list[str], str | None]:
        """The name, the images and the caption file of a row."""
        name, *suffixes = self.rows[index].split("\0")
        images = [name + suffix for suffix in suffixes if suffix.lower() in IMAGE_SUFFIXES]
        captions = [name + suffix for suffix in suffixes if suffix.lower() == ".txt"]
        return name, images, captions[-1] if captions else None

    def _listed(self, index: int) -> tuple[tuple[str, list[str]], bytes]:
        """The names of a row's images, and its caption, which is empty if it cannot be read."""
        name, images, caption = self._row(index)
        try:
            return (name, images), b"" if caption is None else self.read_bytes(caption)
        except Unusable:  # reported when the row is read
            return (name, images), b""


def open_folder(folder: Path, column: str = "text") -> FileSource:
    """A folder with a `metadata.jsonl`, or else with a .txt file per image."""
    if not folder.is_dir():
        raise ValueError(f"The folder {folder} does not exist; pass one that contains images and a {METADATA}.")
    return MetadataSource(folder, column) if (folder / METADATA).is_file() else PairSource(folder)


def contains_images(folder: Path) -> bool:
    """Whether a folder or one of its subfolders contains an image."""
    suffixes = (suffix for row in _rows(str(folder)) for suffix in row.split("\0")[1:])
    return any(suffix.lower() in IMAGE_SUFFIXES for suffix in suffixes)


def _rows(folder: str) -> Iterator[str]:
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
