"""Checkpoints: a folder of safetensors and record.json, written completely or not at all."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from tmatch.files import sync, write_tensors, write_text
from tmatch.migrate import FORMAT, migrate_settings, migrate_weight_name

Tensors = dict[str, dict[str, Tensor]]
"""Named groups (model, ema, optimizer) of named tensors."""
OTHERS = (
    "model.safetensors",
    "autoencoder.safetensors",
    "result.json",
    "record.json",
    "metadata.jsonl",
    "manifest.json",
)
"""Files of models, finished runs, checkpoints, generated images and data shards, which a new run must not overwrite."""
WRITTEN = r"(model|ema|optimizer|shard-.*)\.safetensors(\.index\.json)?|record\.json"
"""Names of the files of a checkpoint; PyTorch names the parts that several processes write shard-*."""


def save(folder: Path, step: int, tensors: Tensors, record: dict[str, Any], keep: int = 2) -> Path:
    """Write `folder`/step-N atomically and keep the `keep` newest checkpoints.

    If the process is killed at any moment, the newest checkpoint is complete.
    """
    begin(place := draft(folder))
    for name, group in tensors.items():
        write_tensors(place / f"{name}.safetensors", group)
    return commit(place, step, record, keep)


def require_free(folder: Path) -> None:
    """Raise if a run would overwrite files of something else in a folder without checkpoints."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder for the run.")
    others = [name for name in OTHERS if (folder / name).exists()]
    foreign = (file for file in draft(folder).glob("[!.]*") if not re.fullmatch(WRITTEN, file.name))
    others += [str(file.relative_to(folder)) for file in foreign]
    if others and latest(folder) is None:
        raise ValueError(
            f"{folder} contains {others[0]} and no checkpoint to resume from; choose a new folder to keep its files."
        )


def draft(folder: Path) -> Path:
    """Return the folder in which the next checkpoint of a run is written."""
    return folder / "writing"


def begin(place: Path) -> None:
    """Create an empty draft."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)


def commit(place: Path, step: int, record: dict[str, Any], keep: int = 2) -> Path:
    """Turn a draft into the checkpoint of a step."""
    folder = place.parent
    final = folder / f"step-{step:08d}"
    contents = {"format": FORMAT, "step": step, "parts": len(_parts(place)), **record}
    write_text(place / "record.json", json.dumps(contents, indent=2) + "\n")
    sync(place)
    if final.exists():  # the same step, saved before
        shutil.rmtree(place)
        return final
    place.rename(final)
    sync(folder)
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)  # may fail on a network disk while somebody reads it
    return final


def _all(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run, if there is one."""
    found = _all(folder)
    return found[-1] if found else None


def record(path: Path, entries: Sequence[str] = ()) -> dict[str, Any]:
    """Read record.json of a checkpoint, which must contain these entries; settings of format 1 are migrated."""
    if not (path / "record.json").is_file():
        raise ValueError(f"{path} is not a checkpoint: record.json is missing; {_ADVICE}")
    try:
        found = json.loads((path / "record.json").read_text())
    except ValueError as error:
        raise ValueError(f"The checkpoint {path} is damaged ({error}); {_ADVICE}") from error
    if not isinstance(found, dict) or not {"step", *entries} <= set(found):
        raise ValueError(f"The checkpoint {path} is damaged (record.json is incomplete); {_ADVICE}")
    if found.get("format", 1) < FORMAT and isinstance(found.get("settings"), dict):
        found["settings"] = migrate_settings(found["settings"])
    return found


def is_sharded(path: Path) -> bool:
    """Return whether several processes wrote a checkpoint in parts; raise if a part is missing."""
    found, parts = len(_parts(path)), record(path).get("parts", 0)
    if found != parts:
        raise ValueError(f"The checkpoint {path} is damaged ({found} of its {parts} parts are present); {_ADVICE}")
    return found > 0


def _parts(path: Path) -> list[Path]:
    return list(path.glob("shard-*.safetensors"))


def flatten(tensors: Tensors) -> dict[str, Tensor]:
    """Return all tensors as `group/name`."""
    return {f"{group}/{name}": tensor for group, named in tensors.items() for name, tensor in named.items()}


def load(path: Path, group: str) -> dict[str, Tensor]:
    """Load a group of tensors of a checkpoint."""
    names, sharded = _stored_names(path), is_sharded(path)
    with _explained(path):
        if not sharded:
            return {names(name): tensor for name, tensor in load_file(path / f"{group}.safetensors").items()}
        from tmatch.train import dcp  # takes a second, which others save

        shapes = {name: shape for name, shape in dcp.shapes(path).items() if name.startswith(f"{group}/")}
        dcp.read(path, tensors := {name: torch.empty(shape) for name, shape in shapes.items()})
        return {names(name.removeprefix(f"{group}/")): tensor for name, tensor in tensors.items()}


def fill(path: Path, tensors: Tensors, distribute_like: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Load a checkpoint into tensors, which may be sharded.

    `distribute_like` distributes a full tensor as another one is.
    """
    names, sharded, own = _stored_names(path), is_sharded(path), flatten(tensors)
    with _explained(path):
        if sharded:
            from tmatch.train import dcp  # takes a second, which others save

            saved = dcp.shapes(path)
            _require_same(path, {names(name): shape for name, shape in saved.items()}, own)
            dcp.read(path, {name: own[names(name)] for name in saved})
            return
        _require_same(path, {names(name): shape for name, shape in _shapes(path, list(tensors)).items()}, own)
        for group in tensors:
            for name, value in load_file(path / f"{group}.safetensors").items():
                tensor = own[names(f"{group}/{name}")]
                with torch.no_grad():
                    tensor.copy_(distribute_like(value, tensor))


def _stored_names(path: Path) -> Callable[[str], str]:
    """Return the mapping from the names in a checkpoint to the current ones."""
    return migrate_weight_name if record(path).get("format", 1) < FORMAT else str


def _shapes(path: Path, groups: Sequence[str]) -> dict[str, torch.Size]:
    found: dict[str, torch.Size] = {}
    for group in groups:
        with safe_open(path / f"{group}.safetensors", "pt") as file:
            for name in file.keys():  # noqa: SIM118
                found[f"{group}/{name}"] = torch.Size(file.get_slice(name).get_shape())
    return found


def _require_same(path: Path, saved: Mapping[str, torch.Size], own: Mapping[str, Tensor]) -> None:
    for name in sorted({*own, *saved}):
        theirs, ours = saved.get(name), own[name].shape if name in own else None
        if theirs != ours:
            shapes = ["missing" if shape is None else f"of shape {list(shape)}" for shape in (theirs, ours)]
            reason = f"{name} is {shapes[0]} in the checkpoint and {shapes[1]} in the model."
            raise Mismatch(f"The checkpoint {path} has another architecture: {reason}")


class Mismatch(ValueError):
    """The checkpoint is intact but belongs to another model."""


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of a damaged checkpoint into one sentence."""
    try:
        yield
    except Mismatch:
        raise
    except FileNotFoundError as error:
        raise ValueError(f"The checkpoint {path} is damaged ({Path(str(error)).name} is missing); {_ADVICE}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"The checkpoint {path} is damaged ({error}); {_ADVICE}") from error


_ADVICE = "remove its folder to resume from the previous checkpoint, or start a new run."
