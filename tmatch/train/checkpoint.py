"""Checkpoints: safetensors and JSON, each written whole or not at all."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, dict[str, Tensor]]
"""Named groups of named tensors: one safetensors file each."""


def _sync(path: Path) -> None:
    """Have a file or folder on the disk before anything that relies on it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A draft to write to, which takes the place of `path` once it is on the disk; until then that stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.writing")
    try:
        yield draft
        _sync(draft)
        draft.rename(path)
    except (OSError, SafetensorError) as error:  # a full disk, for one
        raise OSError(
            f"{path} could not be written ({error}); make room, and the same command goes on from the last checkpoint."
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, written whole or not at all."""
    with _whole(path) as draft:
        save_file({key: value.detach().contiguous() for key, value in tensors.items()}, draft)


def write_bytes(path: Path, content: bytes) -> None:
    """A file, written whole or not at all."""
    with _whole(path) as draft:
        draft.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """A text file, written whole or not at all."""
    write_bytes(path, text.encode())


def save(folder: Path, step: int, tensors: Tensors, record: dict[str, Any], keep: int = 2) -> Path:
    """Write `folder`/step-N beside its final place and move it there at once; the `keep` newest stay.

    Killed at any moment, the folder holds the checkpoint before or the one after, never half of one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draft, final = folder / "writing", folder / f"step-{step:08d}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name, group in tensors.items():
        write_tensors(draft / f"{name}.safetensors", group)
    write_text(draft / "record.json", json.dumps({"step": step, **record}, indent=2) + "\n")
    _sync(draft)
    if final.exists():  # the same step, saved again: the one there is as good
        shutil.rmtree(draft)
        return final
    draft.rename(final)
    _sync(folder)
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def _all(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; what else is called step-something is not ours."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    found = _all(folder)
    return found[-1] if found else None


def load(path: Path, groups: Sequence[str] = (), entries: Sequence[str] = ()) -> tuple[Tensors, dict[str, Any]]:
    """What `save` wrote, with these groups of tensors and these entries of the record in it."""
    if not (path / "record.json").is_file():
        raise ValueError(f"{path} is not a checkpoint: it has no record.json.")
    try:
        record = json.loads((path / "record.json").read_text())
        tensors = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"The checkpoint {path} is damaged ({error}); {_ELSE}") from error
    if not isinstance(record, dict) or not {"step", *entries} <= set(record):
        raise ValueError(f"The checkpoint {path} is damaged (its record.json is not one); {_ELSE}")
    missing = set(groups) - set(tensors)
    if missing:
        raise ValueError(f"The checkpoint {path} is damaged ({min(missing)}.safetensors is missing); {_ELSE}")
    return tensors, record


_ELSE = "remove its folder to go back to the one before, or start anew."
