"""Checkpoints: a folder of safetensors and record.json, written completely or not at all."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tmatch.files import sync, write_tensors, write_text
from tmatch.migrate import FORMAT, migrate_settings, migrate_weight_name

Tensors = dict[str, dict[str, Tensor]]
"""Named groups (model, ema, optimizer) of named tensors."""
OTHERS = r"(model|autoencoder)\.safetensors|(result|record|manifest)\.json|metadata\.jsonl"
"""Files of models, finished runs, checkpoints, generated images and data shards, which no run overwrites."""
WRITTEN = r"(model|ema|optimizer|shard-.*)\.safetensors(\.index\.json)?|record\.json"
"""Names of the files of a checkpoint; PyTorch names the parts that several processes write shard-*."""


def save(folder: Path, step: int, tensors: Tensors, record: dict[str, Any], keep: int = 2) -> Path:
    """Write `folder`/step-N atomically and keep the `keep` newest checkpoints."""
    begin(path := draft(folder))
    for name, group in tensors.items():
        write_tensors(path / f"{name}.safetensors", group)
    return commit(path, step, record, keep)


def require_free(folder: Path) -> None:
    """Raise if a run would overwrite files of something else in a folder without checkpoints."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder for the run.")
    others = [file.name for file in folder.glob("*") if re.fullmatch(OTHERS, file.name)]
    foreign = (file for file in draft(folder).glob("[!.]*") if not re.fullmatch(WRITTEN, file.name))
    others += [str(file.relative_to(folder)) for file in foreign]
    if others and latest(folder) is None:
        raise ValueError(
            f"{folder} contains {others[0]} and no checkpoint to resume from; choose a new folder to keep its files."
        )


def draft(folder: Path) -> Path:
    """Return the folder in which the next checkpoint of a run is written."""
    return folder / "writing"


def begin(path: Path) -> None:
    """Create an empty draft."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def commit(path: Path, step: int, record: dict[str, Any], keep: int = 2) -> Path:
    """Turn a draft into the checkpoint of a step."""
    folder = path.parent
    final = folder / f"step-{step:08d}"
    contents = {"format": FORMAT, "step": step, "parts": len(_parts(path)), **record}
    write_text(path / "record.json", json.dumps(contents, indent=2) + "\n")
    sync(path)
    if final.exists():  # the same step, saved before
        shutil.rmtree(path)
        return final
    path.rename(final)
    sync(folder)
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)  # may fail on a network disk while somebody reads it
    return final


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run, if there is one."""
    return next(iter(_all(folder)[::-1]), None)


def record(path: Path) -> dict[str, Any]:
    """Read record.json of a checkpoint; settings of format 1 are migrated."""
    with _with_reason(path):
        found: dict[str, Any] = json.loads((path / "record.json").read_text())
        found["step"] += 0  # raises if it is missing or not a number
    if found.get("format", 1) < FORMAT and isinstance(found.get("settings"), dict):
        found["settings"] = migrate_settings(found["settings"])
    return found


def is_sharded(path: Path) -> bool:
    """Return whether several processes wrote a checkpoint in parts; raise if a part is missing."""
    found, parts = len(_parts(path)), record(path).get("parts", 0)
    if found != parts:
        with _with_reason(path):
            raise ValueError(f"{found} of its {parts} parts are present")
    return found > 0


def _parts(path: Path) -> list[Path]:
    return list(path.glob("shard-*.safetensors"))


def flatten(tensors: Tensors) -> dict[str, Tensor]:
    """Return all tensors as `group/name`."""
    return {f"{group}/{name}": tensor for group, named in tensors.items() for name, tensor in named.items()}


def load(path: Path, group: str) -> dict[str, Tensor]:
    """Load a group of tensors of a checkpoint."""
    current, sharded = _current_names(path), is_sharded(path)
    with _with_reason(path):
        if not sharded:
            return {current(name): tensor for name, tensor in load_file(path / f"{group}.safetensors").items()}
        from tmatch.train import dcp  # takes a second, which others save

        shapes = {name: shape for name, shape in dcp.shapes(path).items() if name.startswith(f"{group}/")}
        dcp.read(path, tensors := {name: torch.empty(shape) for name, shape in shapes.items()})
        return {current(name.removeprefix(f"{group}/")): tensor for name, tensor in tensors.items()}


def fill(path: Path, tensors: Tensors, distribute_like: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Load a checkpoint into tensors, which may be sharded.

    `distribute_like` distributes a full tensor as another one is.
    """
    if is_sharded(path):
        from tmatch.train import dcp  # takes a second, which others save

        current, own = _current_names(path), flatten(tensors)
        with _with_reason(path):
            saved = dcp.shapes(path)
        _require_same(path, {current(name): shape for name, shape in saved.items()}, own)
        with _with_reason(path):
            dcp.read(path, {name: own[current(name)] for name in saved})
        return
    for group, own in tensors.items():
        loaded = load(path, group)
        _require_same(path, {name: value.shape for name, value in loaded.items()}, own)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(distribute_like(loaded[name], tensor))


def _current_names(path: Path) -> Callable[[str], str]:
    """Return the mapping from the names in a checkpoint to the current ones."""
    return migrate_weight_name if record(path).get("format", 1) < FORMAT else str


def _require_same(path: Path, saved: Mapping[str, torch.Size], own: Mapping[str, Tensor]) -> None:
    for name in sorted({*own, *saved}):
        theirs, ours = saved.get(name), own[name].shape if name in own else None
        if theirs != ours:
            shapes = ["missing" if shape is None else f"of shape {list(shape)}" for shape in (theirs, ours)]
            reason = f"{name} is {shapes[0]} in the checkpoint and {shapes[1]} in the model."
            raise ValueError(f"The checkpoint {path} has another architecture: {reason}")


@contextmanager
def _with_reason(path: Path) -> Iterator[None]:
    """Turn errors of a damaged checkpoint into one sentence."""
    try:
        yield
    except (FileNotFoundError, SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = str(error)
        if isinstance(error, FileNotFoundError):
            reason = f"{Path(error.filename or reason).name} is missing"
        raise ValueError(
            f"The checkpoint {path} is damaged ({reason}); remove its folder to resume from the previous checkpoint, "
            "or start a new run."
        ) from error
