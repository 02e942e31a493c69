"""What is done: a record for each chunk."""

import os
import time
from pathlib import Path

from pydantic import ValidationError

from tmatch.files import write_text
from tmatch.prepare.manifest import Chunk


class Records:
    """The records of a folder that several processes share; when the folder changed last is their sign of life."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._told = 0.0

    def read(self, number: int) -> Chunk | None:
        """What became of a chunk, if that is known."""
        return _read(self._file(number))

    def write(self, number: int, chunk: Chunk) -> None:
        """A chunk is done."""
        write_text(self._file(number), chunk.model_dump_json() + "\n")

    def forget(self, number: int) -> None:
        """A chunk is about to be made again."""
        self._file(number).unlink(missing_ok=True)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return next(self.folder.glob("*.json"), None) is not None

    def all_of(self, settings: str) -> bool:
        """Whether there is no record of other settings than those of a digest."""
        read = (_read(file) for file in self.folder.glob("*.json"))
        return all(chunk is not None and chunk.settings == settings for chunk in read)

    def changed(self) -> int:
        """When there was the last sign of life of any process, in nanoseconds."""
        return self.folder.stat().st_mtime_ns

    def alive(self) -> None:
        """Give a sign of life, about one a second."""
        if time.monotonic() - self._told > 1:
            os.utime(self.folder)
            self._told = time.monotonic()

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"


def _read(file: Path) -> Chunk | None:
    try:
        return Chunk.model_validate_json(file.read_bytes())
    except (ValidationError, FileNotFoundError):  # of another version, or about to be written anew
        return None
