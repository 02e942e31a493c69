"""Images and captions in tar files, in the layout of WebDataset."""

import errno
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from itertools import chain, count, groupby
from pathlib import Path

from tmatch.data.progress import progress_bar
from tmatch.data.sources.source import (
    IMAGE_SUFFIXES,
    LARGEST_FILE,
    Row,
    Source,
    Unusable,
    as_captions,
    decode_caption,
    parse_json,
    row_digest,
    single_image,
)

Extents = dict[str, tuple[int, int]]
"""The offset and the size of each member of a sample, by suffix."""
CAPTIONS = (".txt", ".json")
REST = "(the rest)"
"""The key of the row that stands for the unreadable rest of a damaged tar file."""


class TarSource(Source):
    """WebDataset tar files: an image and a .txt or .json file of the same name form a sample.

    With a `column` other than text, captions are read from that key of the .json, and the .txt is ignored. A row is
    one string, to save memory: the number of its tar file, its name, and suffix, offset and size of each member.
    """

    captioned = True

    def __init__(self, name: str, files: Sequence[Path], column: str = "text") -> None:
        self.name = name
        self.files = list(files)
        self.column = column
        self.rows = [
            "\0".join((str(number), key, *(f"{suffix} {offset} {size}" for suffix, (offset, size) in parts.items())))
            for number, file in enumerate(progress_bar(self.files, f"Listing {name}"))
            for key, parts in _members(file).items()
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> tuple[int, str, Extents]:
        """The number of a row's tar file, its name, and its members."""
        number, key, *members = self.rows[index].split("\0")
        parts = (member.rsplit(" ", 2) for member in members)
        return int(number), key, {suffix: (int(offset), int(size)) for suffix, offset, size in parts}

    def key(self, index: int) -> str:
        number, key, _ = self.row(index)
        return f"{self.files[number].name}/{key}"

    def listed(self, rows: range) -> str:
        some = [self.row(k) for k in rows]
        names = ((key, [(suffix, size) for suffix, (_, size) in parts.items()]) for _, key, parts in some)
        return row_digest(chain([self.column], names, self._captions(some)))

    def read(self, index: int) -> Row:
        number, key, parts = self.row(index)
        if key == REST:
            raise Unusable("the tar file is truncated or damaged from here on; replace it and use a new output folder")
        if not (images := [suffix for suffix in IMAGE_SUFFIXES if suffix in parts]):
            found = " and ".join(filter(None, sorted(parts))) or "a file without suffix"
            raise Unusable(f"no image, only {found}")
        image = single_image(images)
        with self.files[number].open("rb") as file:
            read = {suffix: _bytes(file, *parts[suffix]) for suffix in (image, *CAPTIONS) if suffix in parts}
        if any(len(content) < parts[suffix][1] for suffix, content in read.items()):
            raise Unusable(f"the tar file is truncated here, or the file larger than {LARGEST_FILE:,} bytes")
        return Row(self.key(index), read[image], self._texts(read))

    def _texts(self, read: dict[str, bytes]) -> tuple[str, ...]:
        """The captions of a row, from its .txt or its .json."""
        if ".txt" in read and self.column == "text":
            return as_captions(decode_caption(read[".txt"]))
        if ".json" not in read:
            kinds = ".txt or .json" if self.column == "text" else f".json with a '{self.column}' (--text-column)"
            raise Unusable(f"no caption: no {kinds}")
        row = parse_json(read[".json"])
        if self.column not in row:
            raise Unusable(f"the .json has no '{self.column}'; set --text-column if captions have another key")
        return as_captions(row[self.column])

    def _captions(self, some: Sequence[tuple[int, str, Extents]]) -> Iterator[bytes]:
        """The raw captions of some rows."""
        for number, rows in groupby(some, key=lambda row: row[0]):
            with self.files[number].open("rb") as file:
                for _, _, parts in rows:
                    yield from (_bytes(file, *parts[suffix]) for suffix in CAPTIONS if suffix in parts)


def _bytes(file: io.BufferedReader, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(min(size, LARGEST_FILE, os.fstat(file.fileno()).st_size))  # a header may declare any size


def _members(path: Path) -> dict[str, Extents]:
    """The samples of a tar file: the extents of their members, by name and suffix.

    A suffix that occurs again under one name starts a new sample.
    """
    rows, newest, complete = dict[str, Extents](), dict[str, str](), False
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
                if not member.isfile():
                    continue
                head, slash, name = member.name.rpartition("/")
                stem, dot, suffix = name.partition(".")
                stem, suffix = head + slash + stem, dot + suffix.lower()
                key = newest.setdefault(stem, stem)
                if suffix in rows.get(key, {}):
                    key = newest[stem] = next(new for k in count(2) if (new := f"{stem} ({k})") not in rows)
                rows.setdefault(key, {})[suffix] = (member.offset_data, member.size)
            first = _bytes(file, tar.offset, tarfile.BLOCKSIZE)  # tarfile takes an unreadable header for the end
            complete = first == bytes(tarfile.BLOCKSIZE) and not any(map(any, iter(lambda: file.read(2**20), b"")))
    except (tarfile.ReadError, OSError, MemoryError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        if not rows:  # otherwise it is truncated, or a header declares more bytes than a file can have
            raise ValueError(f"{path} is not an uncompressed tar file ({error}).") from error
    return rows if complete else {**rows, REST: {}}
