"""Checkpoints: a folder of safetensors and record.json, written completely or not at all."""

import hashlib
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

from tmatch.files import require_folder, sync, write_tensors, write_text
from tmatch.migrate import FORMAT, migrate_sampling, migrate_settings, migrate_weight_name
from tmatch.reading import read_json, require_regular

Tensors = dict[str, dict[str, Tensor]]
"""Named groups (model, ema, optimizer) of named tensors."""
OTHERS = r"(model|autoencoder)\.safetensors|(result|record|manifest)\.json|metadata\.jsonl"
"""Files of models, finished runs, checkpoints, generated images and data shards, which no run overwrites."""
PART_FILES = "shard-*.safetensors"
"""Names that PyTorch gives the parts that several processes write."""
WRITTEN = r"(model|ema|optimizer|shard-.*)\.safetensors(\.index\.json)?|record\.json"
"""Names of the files of a checkpoint."""
_DAMAGE = (SafetensorError, ValueError, LookupError, TypeError, OverflowError, RecursionError)


def save(folder: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> Path:
    """Write `folder`/step-N atomically and keep the newest checkpoints."""
    begin(path := draft(folder))
    for name, group in tensors.items():
        write_tensors(path / f"{name}.safetensors", group)
    return commit(path, step, record)


def require_free(folder: Path) -> None:
    """Raise if a run would overwrite files of something else in a folder without checkpoints."""
    require_folder(folder)
    others = [file for file in folder.glob("*") if re.fullmatch(OTHERS, file.name)]
    others += [file for file in draft(folder).glob("[!.]*") if not re.fullmatch(WRITTEN, file.name)]
    if others and latest(folder) is None:
        reason = f"contains {others[0].relative_to(folder)} and no checkpoint to resume from"
        raise ValueError(f"{folder} {reason}; choose a new folder to keep its files.")


def draft(folder: Path) -> Path:
    """Return the folder in which the next checkpoint of a run is written."""
    return folder / "writing"


def begin(path: Path) -> None:
    """Create an empty draft."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def files(path: Path, pattern: str = "*.safetensors") -> list[Path]:
    """Return the files of tensors of a draft or a checkpoint."""
    return sorted(path.glob(pattern))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def commit(path: Path, step: int, record: dict[str, Any]) -> Path:
    """Turn a draft into the checkpoint of a step."""
    final = (folder := path.parent) / f"step-{step:08d}"
    digests = {file.name: _sha256(file) for file in files(path)}
    contents = {"format": FORMAT, "step": step, "parts": len(files(path, PART_FILES)), **record, "sha256": digests}
    write_text(path / "record.json", json.dumps(contents, indent=2) + "\n")
    sync(path)
    if final.exists():  # the same step, saved before
        shutil.rmtree(path)
    else:
        path.rename(final)
        sync(folder)
        prune(folder)
    return final


def prune(folder: Path) -> None:
    """Remove all but the two newest checkpoints, and what is left of one whose removal was interrupted."""
    for old in _all(folder)[:-2]:
        shutil.rmtree(old, ignore_errors=True)  # may fail on a network disk while somebody reads it


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run, if there is one."""
    return next(iter(_all(folder)[::-1]), None)


def record(path: Path) -> dict[str, Any]:
    """Read and check record.json of a checkpoint; older settings are migrated."""
    with reading(path / "record.json"):
        found = read_json(path / "record.json")
        version, step = found.get("format", 1), found.get("step")
        if version not in range(1, FORMAT + 1):
            raise ValueError(f"its format is {version!r:.40}, and this version of tmatch reads up to {FORMAT}")
        if not isinstance(step, int) or path.name != f"step-{step:08d}":
            raise ValueError(f"its step is {step!r:.40}, and its folder is {path.name}")
        if isinstance(found.get("settings"), dict):
            migrate = migrate_settings if version < FORMAT else migrate_sampling
            found["settings"] = migrate(found["settings"])
    return found


def verify(path: Path, files: Sequence[Path]) -> None:
    """Raise if one of these files of a checkpoint is damaged; earlier versions recorded no digests to compare with."""
    expected = record(path).get("sha256")
    for file in files:
        with reading(file), safe_open(file, "pt"):  # which checks the header
            if expected is not None and expected[file.name] != _sha256(file):
                raise ValueError("its SHA-256 is not the one in record.json")


def is_sharded(path: Path) -> bool:
    """Return whether several processes wrote a checkpoint in parts; raise if a part is missing."""
    found, parts = len(files(path, PART_FILES)), record(path).get("parts", 0)
    if found != parts:
        with reading(path / "record.json"):
            raise ValueError(f"{found} of its {parts!r:.40} parts are present")
    return found > 0


def flatten(tensors: Tensors) -> dict[str, Tensor]:
    """Return all tensors as `group/name`."""
    return {f"{group}/{name}": tensor for group, named in tensors.items() for name, tensor in named.items()}


def load(path: Path, group: str, verified: bool = False) -> dict[str, Tensor]:
    """Load a group of tensors of a checkpoint; its files are verified first, unless they are `verified` already."""
    current, sharded = _current_names(path), is_sharded(path)
    file = path / (PART_FILES if sharded else f"{group}.safetensors")
    if not verified:
        verify(path, files(path) if sharded else [file])
    with reading(file):
        if not sharded:
            return {current(name): tensor for name, tensor in load_file(file).items()}
        from tmatch.train import dcp  # takes a second, which others save

        shapes = {name: shape for name, shape in dcp.shapes(path).items() if name.startswith(f"{group}/")}
        dcp.read(path, tensors := {name: torch.empty(shape) for name, shape in shapes.items()})
        return {current(name.removeprefix(f"{group}/")): tensor for name, tensor in tensors.items()}


def fill(path: Path, tensors: Tensors, distribute_like: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Load a checkpoint, which is verified already, into tensors, which may be sharded.

    `distribute_like` distributes a full tensor as another one is.
    """
    if is_sharded(path):
        from tmatch.train import dcp  # takes a second, which others save

        current, own = _current_names(path), flatten(tensors)
        with reading(path / PART_FILES):
            saved = dcp.shapes(path)
        _require_same(path, {current(name): shape for name, shape in saved.items()}, own)
        with reading(path / PART_FILES):
            dcp.read(path, {name: own[current(name)] for name in saved})
        return
    for group, own in tensors.items():
        loaded = load(path, group, verified=True)
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
def reading(file: Path) -> Iterator[None]:
    """Turn errors of a damaged file of a checkpoint into one sentence, which offers the checkpoint before."""
    try:
        require_regular(file)
        yield
    except (FileNotFoundError, *_DAMAGE) as error:
        if missing := isinstance(error, FileNotFoundError):
            file = Path(error.filename or file)
        path = file.parent
        before = [other.name for other in _all(path.parent) if other.name < path.name]
        advice = "there is no earlier checkpoint, so start a new run in another folder."
        if before:
            advice = f"remove the folder {path.name} and rerun the same command to resume from {before[-1]}."
        what = "missing" if missing else f"damaged or of another version ({error})"
        raise ValueError(f"The checkpoint file {file} is {what}; {advice}") from error
