"""Images and captions in tars, in WebDataset's layout."""

import io
import posixpath
import re
import tarfile
from array import array
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import chain, count, groupby
from pathlib import Path
from typing import Self

from tmatch.data.sources.source import PICTURES, Row, Source, Unusable, decoded, digest, only, parsed, texts, told

Places = dict[str, tuple[int, int]]
"""Where members begin and how long they are, by suffix."""
CAPTIONS = (".txt", ".json")
REST = "(the rest)"
"""What stands for all that follows in a damaged tar."""
PLAIN = re.compile(rb"([0-7]{11})[ \0].{12}([0-7]{6})[ \0]{2}[0\0]", re.DOTALL)
"""From the 125th byte of a plain file's header: its size, its time, the checksum and the kind."""
NOWHERE = (0, -1)
"""The place of a link to what is not in the tar before it."""


class TarSource(Source):
    """Tars in WebDataset's layout: members of one name, an image, and a .txt or a .json that has the caption.

    A `column` other than text is one of the .json, and then the .txt is not read.
    """

    def __init__(self, name: str, files: Sequence[Path], column: str = "text") -> None:
        self.name = name
        self.files = list(files)
        self.column = column
        self.rows = TarRows()
        for number, file in enumerate(told(self.files, f"{name} is being listed", "tars")):
            for key, parts in _members(file).items():
                self.rows.append(number, key, parts)

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, index: int) -> str:
        number, key, _ = self.rows[index]
        return f"{self.files[number].name}/{key}"

    def listed(self, rows: range) -> str:
        some = [self.rows[k] for k in rows]
        names = ((key, [(suffix, size) for suffix, (_, size) in parts.items()]) for _, key, parts in some)
        return digest(chain([self.column], names, self._captions(some)))

    def read(self, index: int) -> Row:
        number, key, parts = self.rows[index]
        if key == REST:
            raise Unusable("the tar is cut or damaged from here on: fetch it again, and give a new folder")
        if not (images := [suffix for suffix in PICTURES if suffix in parts]):
            there = " and ".join(filter(None, sorted(parts))) or "what has no suffix"
            raise Unusable(f"it has no image, only {there}")
        image = only(images)
        with self.files[number].open("rb") as file:
            read = {suffix: _bytes(file, *parts[suffix]) for suffix in (image, *CAPTIONS) if suffix in parts}
        return Row(self.key(index), read[image], self._texts(read))

    def _texts(self, read: dict[str, bytes]) -> tuple[str, ...]:
        """The captions of a row: of its .txt, or of its .json, where alone a column that is asked for may stand."""
        if ".txt" in read and self.column == "text":
            return texts(decoded(read[".txt"]))
        if ".json" not in read:
            raise Unusable(
                "it has no .txt or .json with a caption"
                if self.column == "text"
                else f"it has no .json with a '{self.column}', the --text-column"
            )
        row = parsed(read[".json"])
        if self.column not in row:
            raise Unusable(f"its .json has no '{self.column}'; --text-column names another")
        return texts(row[self.column])

    def _captions(self, some: Sequence[tuple[int, str, Places]]) -> Iterator[bytes]:
        """As they are in the tars, as far as these go."""
        for number, rows in groupby(some, key=lambda row: row[0]):
            with self.files[number].open("rb") as file:
                for _, _, parts in rows:
                    for offset, size in (parts[suffix] for suffix in CAPTIONS if suffix in parts):
                        file.seek(offset)
                        yield file.read(max(size, 0))


class TarRows:
    """The number of a tar, a name, and where the members of that name are; in arrays, for there are millions."""

    def __init__(self) -> None:
        self._firsts: list[int] = []  # rows, by tar
        self._keys: list[str] = []
        self._suffixes: list[tuple[str, ...]] = []  # few of them, which are shared
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._begins = array("q")  # by row, in the numbers
        self._numbers = array("q")  # an offset and a size, by member

    def append(self, tar: int, key: str, parts: Places) -> None:
        """Add a row, of the last tar or of a later one."""
        self._firsts += [len(self)] * (tar + 1 - len(self._firsts))
        self._keys.append(key)
        suffixes = tuple(parts)
        self._suffixes.append(self._shared.setdefault(suffixes, suffixes))
        self._begins.append(len(self._numbers))
        for place in parts.values():
            self._numbers.extend(place)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> tuple[int, str, Places]:
        begin, suffixes = self._begins[index], self._suffixes[index]
        numbers = self._numbers[begin : begin + 2 * len(suffixes)]
        parts = dict(zip(suffixes, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
        return bisect(self._firsts, index) - 1, self._keys[index], parts

    def __iter__(self) -> Iterator[tuple[int, str, Places]]:
        return (self[index] for index in range(len(self)))


def _members(file: Path) -> dict[str, Places]:
    """The members of a tar by name and suffix: where each begins and how long it is."""
    rows, places = _Samples(), dict[str, tuple[int, int]]()
    try:
        with file.open("rb") as whole, tarfile.open(fileobj=whole, mode="r:", tarinfo=_Member) as tar:
            for member in tar:
                tar.members.clear()  # type: ignore[attr-defined]  # which the library would hold
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


class _Member(tarfile.TarInfo):
    """A member; of a plain file's header only what we need is read, which takes a third of the time."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        plain, name = PLAIN.match(buf, 124), bytes(buf[:100]).partition(b"\0")[0]
        if plain is None or len(buf) != tarfile.BLOCKSIZE or buf[345] or name.endswith(b"/"):
            return super().frombuf(buf, encoding, errors)
        if int(plain[2], 8) != sum(buf) - sum(buf[148:156]) + 8 * ord(" "):
            return super().frombuf(buf, encoding, errors)
        member = cls(name.decode(encoding, errors))
        member.size = int(plain[1], 8)
        return member


class _Samples(dict[str, Places]):
    """Members by name and suffix; one that comes again begins another sample, as its neighbours are of one image."""

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
