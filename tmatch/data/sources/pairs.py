"""Images in a folder and those within it, each with its caption in a .txt."""

import os
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tmatch.data.sources.source import PICTURES, Row, Source, Unusable, bytes_within, decoded, digest, only, texts, told

LINKED = "/"
"""How the name of a row ends that is no image but a link to a folder."""


class PairSource(Source):
    """All images in a folder and those within it, each with its caption in a .txt of the same name.

    A row is held as one text, for there are millions: its name, and the suffixes of its files.
    """

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = folder.resolve()
        self.rows = sorted(told(_rows(str(folder)), f"{folder} is being listed", "images"))
        captions = (self._listed(index)[1] for index in range(len(self)))
        if not any(told(captions, f"The captions of {folder} are being looked for", "images")):
            raise ValueError(
                f"{folder} holds images without captions: write a metadata.jsonl, or for each image a .txt of the "
                "same name."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, index: int) -> str:
        return self._row(index)[0]

    def listed(self, rows: range) -> str:
        return digest(map(self._listed, rows))

    def read(self, index: int) -> Row:
        name, images, caption = self._row(index)
        if name.endswith(LINKED):
            raise Unusable("it is a link to a folder, which is not followed: give that folder on its own, or copy it")
        image = only(images)
        captions = texts(decoded(bytes_within(self.folder, caption or f"{name}.txt")))
        return Row(image, bytes_within(self.folder, image), captions)

    def _row(self, index: int) -> tuple[str, list[str], str | None]:
        """Its name, its images, and the file of its caption."""
        name, *suffixes = self.rows[index].split("\0")
        images = [name + suffix for suffix in suffixes if suffix.lower() in PICTURES]
        captions = [name + suffix for suffix in suffixes if suffix.lower() == ".txt"]
        return name, images, captions[-1] if captions else None

    def _listed(self, index: int) -> tuple[tuple[str, list[str]], bytes]:
        """What there is of a row, and its caption."""
        name, images, caption = self._row(index)
        return (name, images), b"" if caption is None else self._caption(caption)

    def _caption(self, file: str) -> bytes:
        """As it is in its file; nothing where that cannot be read, which is listed later."""
        try:
            path = f"{self.folder}/{file}"
            if stat.S_ISREG(os.lstat(path).st_mode):  # no link, so it does not lead out of the folder
                with open(path, "rb") as opened:
                    return opened.read()
            return bytes_within(self.folder, file)
        except (Unusable, FileNotFoundError, PermissionError):
            return b""


def holds_images(folder: Path) -> bool:
    """Whether any lies in a folder or those within it."""
    suffixes = (suffix for row in _rows(str(folder)) for suffix in row.split("\0")[1:])
    return any(suffix.lower() in PICTURES for suffix in suffixes)


def linked_folders(folder: Path) -> list[str]:
    """The links to folders in a folder and those within it."""
    return sorted(row.removesuffix(LINKED) for row in _rows(str(folder)) if row.endswith(LINKED))


def _rows(folder: str) -> Iterator[str]:
    """Names in a folder and those within it, each with the suffixes of its files, and links to folders.

    Rows sort by their names: no letter of a name is smaller than the one between it and its suffixes.
    """
    kept = frozenset((".txt", *PICTURES))
    for place, folders, files in os.walk(folder, onerror=_fail):
        below = "" if place == folder else os.path.relpath(place, folder) + "/"
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = {name for name in folders if os.path.islink(f"{place}/{name}")}
        found: dict[str, list[str]] = {}
        for file in sorted(chain(files, (name for name in folders if name not in linked))):
            stem, suffix = os.path.splitext(file)
            if suffix.lower() in kept and not file.startswith("."):
                found.setdefault(stem, []).append(suffix)
        yield from ("\0".join((below + stem, *suffixes)) for stem, suffixes in found.items())
        yield from (below + name + LINKED for name in linked)


def _fail(error: OSError) -> None:
    """A folder that may not be read is passed over; a machine that fails is not."""
    if not isinstance(error, PermissionError):
        raise error
