"""Files that are written whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder that one process at a time may write to; another that asks for it is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        os.register_at_fork(after_in_child=file.close)  # else workers, which are forks, would hold it on
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is being trained by another process; wait for it, or give a new folder."
            ) from None
        except OSError:  # a disk that knows no locks
            pass
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
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
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of `path` at the end; that is not there, or empty.

    An empty one stays, for it may be a disk of its own or where somebody stands, and what is written moves into it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    empty = path.is_dir()
    draft = _within(path) if empty else path.with_name(f".{path.name}.writing")
    try:
        with _advising(path):
            shutil.rmtree(draft, ignore_errors=True)  # which a killed command left
            draft.mkdir()
            yield draft
            for part in draft.iterdir() if empty else ():
                part.rename(path / part.name)
            if not empty:
                draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_free(path: Path) -> bool:
    """Whether a folder is not there, or empty but for a draft that a killed command left."""
    return not path.exists() or all(file == _within(path) for file in path.iterdir())


def _within(path: Path) -> Path:
    return path / ".writing"


@contextmanager
def _resumable(path: Path) -> Iterator[Path]:
    """A draft that takes its place once it is on the disk, for a command that goes on where it stopped."""
    with _advising(path), atomic_write(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode
        yield draft
        if draft.stat().st_mode != mode:  # safetensors writes files that only their owner may read
            draft.chmod(mode)
        sync(draft)


@contextmanager
def _advising(path: Path) -> Iterator[None]:
    """Say what could not be written, and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # a full disk, for one
        reason, advice = error.__cause__ or error, "make room"  # that of a file within, which was advised on before
        if isinstance(reason, FileNotFoundError):
            advice = "leave its folder to one command at a time"
        elif not os.access(path.parent, os.W_OK):
            advice = "make its folder writable"
        raise OSError(f"{path} could not be written ({reason}); {advice}, and the same command goes on.") from reason


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
