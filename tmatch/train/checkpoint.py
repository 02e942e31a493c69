"""Checkpoints: safetensors and JSON, each written whole or not at all."""

import json
import os
import shutil
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


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, on the disk when this returns."""
    try:
        save_file({key: value.detach().contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # a full disk, for one
        raise OSError(
            f"{path} could not be written ({error}); make room, and the same command goes on from the last checkpoint."
        ) from error
    _sync(path)


def save(folder: Path, step: int, tensors: Tensors, record: dict[str, Any], keep: int = 2) -> Path:
    """Write `folder`/step-N beside its final place and move it there at once; the `keep` newest stay.

    Killed at any moment, the folder holds the checkpoint before or the one after, never half of one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draft, final = folder / "writing", folder / f"step-{step:08d}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name, group in tensors.items():
        write(draft / f"{name}.safetensors", group)
    (draft / "record.json").write_text(json.dumps({"step": step, **record}, indent=2) + "\n")
    _sync(draft / "record.json")
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
    return sorted(folder.glob("step-*"))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    found = _all(folder)
    return found[-1] if found else None


def load(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """What `save` wrote."""
    if not (path / "record.json").is_file():
        raise ValueError(f"{path} is not a checkpoint: it has no record.json.")
    try:
        record = json.loads((path / "record.json").read_text())
        tensors = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"The checkpoint {path} is damaged ({error}); go back to another, or start anew.") from error
    return tensors, record
