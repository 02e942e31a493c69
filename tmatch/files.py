"""Atomic writes: files and folders are written completely or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

WRITING = ".writing"


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def no_link(path: str, flags: int) -> int:
    """Open a file unless it is a link, which could change a file elsewhere: an `opener` of `open`."""
    if os.path.islink(path):
        raise ValueError(f"{path} is a link, and writing would change another file; remove the link.")
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # a pipe would wait for its reader


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Lock a folder; wait for another process that holds the lock, or raise."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a", opener=no_link) as file:
        os.register_at_fork(after_in_child=file.close)  # or forked workers would keep the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process; wait for it or choose a new folder.") from None
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` on success."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}{WRITING}")
    try:
        draft.unlink(missing_ok=True)  # of a killed process
        yield draft
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `path` on success; `path` must be missing or empty.

    An existing empty folder is kept, for it may be a mount point or a working directory; files are moved into it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    empty = path.is_dir()
    draft = path / WRITING if empty else path.with_name(f".{path.name}{WRITING}")
    try:
        with _explained(path):
            shutil.rmtree(draft, ignore_errors=True)  # of a killed process
            draft.mkdir()
            yield draft
            for file in draft.rglob("*"):
                if file.is_file() and not file.is_symlink():  # other libraries make some private to their owner
                    file.chmod(draft.stat().st_mode & 0o666)
            if not empty:
                draft.rename(path)
            for part in draft.iterdir() if empty else ():
                part.rename(path / part.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def require_folder(path: Path) -> None:
    """Raise if a path can neither be used nor created as a folder."""
    for part in (path, *path.parents):
        if part.is_symlink() and not part.exists():
            raise ValueError(f"{part} is a link to a folder that does not exist; create it or choose another folder.")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; choose a folder.")


def is_free(path: Path) -> bool:
    """Return whether a folder is missing, or empty but for the temporary folder of a killed process."""
    require_folder(path)
    return not path.exists() or all(file.name == WRITING for file in path.iterdir())


@contextmanager
def _resumable(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` once it is flushed to disk."""
    with _explained(path), atomic_write(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode
        yield draft
        if draft.stat().st_mode != mode:  # safetensors makes files private to their owner
            draft.chmod(mode)
        sync(draft)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise errors with advice."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason, advice = error.__cause__ or error, "free disk space"  # the cause, if a file within was explained before
        if isinstance(reason, (FileNotFoundError, FileExistsError)):
            advice = "run one command at a time in its folder"
        elif not os.access(path.parent, os.W_OK):
            advice = "make its folder writable"
        raise OSError(f"Cannot write {path} ({reason}); {advice} and rerun the same command to resume.") from reason


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    with _resumable(path) as draft:
        save_file({key: value.detach().contiguous() for key, value in tensors.items()}, draft)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with _resumable(path) as draft:
        draft.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def cache_folder() -> Path:
    """Where encoded data is cached: $TMATCH_CACHE, by default ~/.cache/tmatch."""
    return Path(os.environ.get("TMATCH_CACHE") or Path.home() / ".cache" / "tmatch")
