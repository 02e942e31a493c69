"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def sync(path: Path) -> None:
    """Have a file or folder on the disk before anything that relies on it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A draft to write to, which takes the place of `path` at the end; until then that stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.writing")
    try:
        draft.unlink(missing_ok=True)  # which a killed run left
        yield draft
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _resumable(path: Path) -> Iterator[Path]:
    """A draft that takes its place once it is on the disk, for a command that goes on where it stopped."""
    try:
        with drafted(path) as draft:
            draft.touch()
            mode = draft.stat().st_mode
            yield draft
            if draft.stat().st_mode != mode:  # safetensors writes files that only their owner may read
                draft.chmod(mode)
            sync(draft)
    except (OSError, SafetensorError) as error:  # a full disk, for one
        advice = "make room"
        if isinstance(error, FileNotFoundError):
            advice = "leave its folder to one command at a time"
        elif not os.access(path.parent, os.W_OK):
            advice = "make its folder writable"
        raise OSError(f"{path} could not be written ({error}); {advice}, and the same command goes on.") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, written whole or not at all."""
    with _resumable(path) as draft:
        save_file({key: value.detach().contiguous() for key, value in tensors.items()}, draft)


def write_bytes(path: Path, content: bytes) -> None:
    """A file, written whole or not at all."""
    with _resumable(path) as draft:
        draft.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """A text file, written whole or not at all."""
    write_bytes(path, text.encode())
