"""The settings of a preparation, and a record of every chunk that is complete."""

import json
from pathlib import Path

from tmatch.data.manifest import Chunk, ShardSettings
from tmatch.data.shards import MANIFEST
from tmatch.files import locked, write_text
from tmatch.migrate import migrate_manifest


class Records:
    """The records of a folder that several processes write to."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / "chunks"

    def begin(self, settings: ShardSettings) -> None:
        """Write the settings, or raise if existing chunks have other settings."""
        file = self.out / "settings.json"
        with locked(self.folder, wait=True):
            then = _read_settings(file)
            if then is None and self:
                raise ValueError(f"{file} is missing or damaged; use a new folder for the shards.")
            if then is not None and self and (changed := then.differs(settings)):
                raise ValueError(f"{self.out} contains shards with another {' and '.join(changed)}; use a new folder.")
            if then != settings:
                write_text(file, settings.model_dump_json(indent=2) + "\n")

    def read(self, number: int) -> Chunk | None:
        """The record of a chunk; None if it is missing or damaged."""
        try:
            record = json.loads(self._file(number).read_bytes())
            record.pop("settings", None)  # format 1
            return Chunk.model_validate_json(json.dumps(record))
        except (FileNotFoundError, ValueError, AttributeError, RecursionError):
            return None

    def exists(self, number: int) -> bool:
        """Whether a chunk has a record."""
        return self._file(number).is_file()

    def write(self, number: int, chunk: Chunk) -> None:
        """Mark a chunk as complete."""
        write_text(self._file(number), chunk.model_dump_json() + "\n")

    def forget(self, number: int) -> None:
        """Mark a chunk as incomplete, before its shards change; so is the whole set of shards."""
        with locked(self.folder, wait=True):
            (self.out / MANIFEST).unlink(missing_ok=True)
            self._file(number).unlink(missing_ok=True)

    def __bool__(self) -> bool:
        """Whether any chunk is complete."""
        return next(self.folder.glob("*.json"), None) is not None

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"


def _read_settings(file: Path) -> ShardSettings | None:
    """The settings in a file; None if it is missing or damaged."""
    try:
        found = json.loads(file.read_bytes())
        settings = found if "batch_size" in found else migrate_manifest({"settings": found})["settings"]
        return ShardSettings.model_validate_json(json.dumps(settings))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
