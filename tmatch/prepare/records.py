"""What is done, and with which settings: a record for each chunk."""

import os
import time
from pathlib import Path

from pydantic import ValidationError

from tmatch.data.manifest import Chunk, Settings
from tmatch.files import write_text


class Records:
    """The records of a folder that several processes share; when the folder changed last is their sign of life."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / "chunks"
        self._told = 0.0

    def begin(self, settings: Settings, rank: int) -> None:
        """Write the settings, or refuse to go on with others where a chunk was made with them."""
        file, then = self.out / "settings.json", None
        if file.is_file():
            try:
                then = Settings.model_validate_json(file.read_bytes())
            except ValidationError as error:
                if self:
                    raise ValueError(f"{file} is damaged, or of another version; give a new folder.") from error
        changed = [] if then is None else then.differs(settings)
        another = bool({"source", "contents"} & set(changed))
        if changed and self and (another or not self._all_of(settings.digest())):
            raise ValueError(
                f"{self.out} holds shards with another {' and '.join(changed)}; give a new folder, or the old settings."
            )
        if rank == 0 and then != settings:  # of the note, or where encoders and source lie, if not of all
            write_text(file, settings.model_dump_json(indent=2) + "\n")
        self.folder.mkdir(parents=True, exist_ok=True)

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

    def _all_of(self, settings: str) -> bool:
        """Whether there is no record of other settings than those of a digest."""
        read = (_read(file) for file in self.folder.glob("*.json"))
        return all(chunk is not None and chunk.settings == settings for chunk in read)

    def changed(self) -> int:
        """When there was the last sign of life of any process, in nanoseconds."""
        return self.folder.stat().st_mtime_ns

    def heartbeat(self) -> None:
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
