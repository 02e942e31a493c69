"""Pictures and captions in tars, in WebDataset's layout."""

import io
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from itertools import chain, count, groupby
from pathlib import Path

from tmatch.prepare.source import PICTURES, Row, Source, Unusable, decoded, digest, only, parsed, texts

CAPTIONS = (".txt", ".json")
REST = "(the rest)"
"""What stands for all that follows in a damaged tar."""
NOWHERE = (0, -1)
"""The place of a link to what is not in the tar before it."""


class TarSource(Source):
    """Tars in WebDataset's layout: members of one name, a picture, and a .txt or a .json that has the caption."""

    def __init__(self, name: str, files: Sequence[Path], column: str = "text") -> None:
        self.name = name
        self.files = list(files)
        self.column = column
        self.rows: list[tuple[int, str, dict[str, tuple[int, int]]]] = []
        for number, file in enumerate(self.files):
            self.rows += [(number, key, parts) for key, parts in _members(file).items()]

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, index: int) -> str:
        number, key, _ = self.rows[index]
        return f"{self.files[number].name}/{key}"

    def listed(self, rows: range) -> str:
        some = self.rows[rows.start : rows.stop]
        names = ((key, [(suffix, size) for suffix, (_, size) in parts.items()]) for _, key, parts in some)
        return digest(chain([self.column], names, self._captions(some)))

    def read(self, index: int) -> Row:
        number, key, parts = self.rows[index]
        if key == REST:
            raise Unusable("the tar is cut or damaged from here on: fetch it again, and give a new folder")
        if not (pictures := [suffix for suffix in PICTURES if suffix in parts]):
            there = " and ".join(filter(None, sorted(parts))) or "what has no suffix"
            raise Unusable(f"it has no picture, only {there}")
        picture = only(pictures)
        with self.files[number].open("rb") as file:
            read = {suffix: _bytes(file, *parts[suffix]) for suffix in (picture, *CAPTIONS) if suffix in parts}
        if ".txt" in read:
            captions = texts(decoded(read[".txt"]))
        elif ".json" in read:
            row = parsed(read[".json"])
            if self.column not in row:
                raise Unusable(f"its .json has no '{self.column}'; --text-column names another")
            captions = texts(row[self.column])
        else:
            raise Unusable("it has no .txt or .json with a caption")
        return Row(self.key(index), read[picture], captions)

    def _captions(self, some: Sequence[tuple[int, str, dict[str, tuple[int, int]]]]) -> Iterator[bytes]:
        """As they are in the tars, as far as these go."""
        for number, rows in groupby(some, key=lambda row: row[0]):
            with self.files[number].open("rb") as file:
                for _, _, parts in rows:
                    for offset, size in (parts[suffix] for suffix in CAPTIONS if suffix in parts):
                        file.seek(offset)
                        yield file.read(max(size, 0))


def _members(file: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """The members of a tar by name and suffix: where each begins and how long it is."""
    rows, places = _Samples(), dict[str, tuple[int, int]]()
    try:
        with file.open("rb") as whole, tarfile.open(fileobj=whole, mode="r:") as tar:
            for member in tar:
                own = posixpath.normpath(member.name)
                if member.isfile():
                    places[own] = (member.offset_data, member.size)
                elif member.islnk() or member.issym():
                    where = posixpath.dirname(own) if member.issym() else ""
                    target = posixpath.normpath(posixpath.join(where, member.linkname))
                    places[own] = places.get(target, NOWHERE)
                else:
                    continue
                head, _, name = member.name.rpartition("/")
                stem, dot, suffix = name.partition(".")
                rows.put(f"{head}/{stem}" if head else stem, dot + suffix.lower(), places[own])
            whole.seek(tar.offset)
            rest = iter(lambda: whole.read(2**20), b"")
            ended = (first := next(rest, b""))[: tarfile.BLOCKSIZE] == bytes(tarfile.BLOCKSIZE)
            ended = ended and not any(first) and not any(any(block) for block in rest)
    except tarfile.ReadError as error:
        if not rows:
            raise ValueError(
                f"{file} is not a tar, or an empty or compressed one ({error}); unpack it, fetch it again, or take it "
                "out."
            ) from error
        ended = False
    if not ended:  # the library takes any header it cannot read for the end, and any hole
        rows[REST] = {}
    return rows


class _Samples(dict[str, dict[str, tuple[int, int]]]):
    """Members by name and suffix; one that comes again begins another sample, as its neighbours are of one picture."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, str] = {}

    def put(self, name: str, suffix: str, place: tuple[int, int]) -> None:
        """Give a member to the newest sample of its name, or to a new one."""
        key = self.newest.setdefault(name, name)
        if suffix in self.get(key, {}):
            key = self.newest[name] = next(new for k in count(2) if (new := f"{name} ({k})") not in self)
        self.setdefault(key, {})[suffix] = place


def _bytes(file: io.BufferedReader, offset: int, size: int) -> bytes:
    if (offset, size) == NOWHERE:
        raise Unusable("it is a link to what is not in the tar before it")
    file.seek(offset)
    found = file.read(size)
    if len(found) < size:
        raise Unusable("the tar ends within it")
    return found
