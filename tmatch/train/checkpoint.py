"""Checkpoints: safetensors and JSON, each written whole or not at all."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from tmatch.files import sync, write_tensors, write_text

Tensors = dict[str, dict[str, Tensor]]
"""Named groups of named tensors."""
Shapes = dict[str, dict[str, torch.Size]]
OTHERS = (
    "model.safetensors",
    "autoencoder.safetensors",
    "result.json",
    "record.json",
    "metadata.jsonl",
    "manifest.json",
)
"""What runs write at their end, and what else of ours a folder may hold: models, checkpoints, images, shards."""
WRITTEN = r"(model|ema|optimizer|shard-.*)\.safetensors(\.index\.json)?|record\.json"
"""The files of a checkpoint."""


def save(folder: Path, step: int, tensors: Tensors, record: dict[str, Any], keep: int = 2) -> Path:
    """Write `folder`/step-N beside its final place and move it there at once; the `keep` newest stay.

    Killed at any moment, the folder holds the checkpoint before or the one after, never half of one.
    """
    begin(place := draft(folder))
    for name, group in tensors.items():
        write_tensors(place / f"{name}.safetensors", group)
    return commit(place, step, record, keep)


def require_free(folder: Path) -> None:
    """Refuse a folder where a run would take the place of something else; one that has checkpoints goes on."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the run.")
    others = [name for name in OTHERS if (folder / name).exists()]
    foreign = (file for file in draft(folder).glob("[!.]*") if not re.fullmatch(WRITTEN, file.name))
    others += [str(file.relative_to(folder)) for file in foreign]
    if others and latest(folder) is None:
        raise ValueError(
            f"{folder} holds {others[0]}, and no run that could go on; give a new folder, so that nothing is lost."
        )


def draft(folder: Path) -> Path:
    """Where a checkpoint of the run in a folder is written before it counts."""
    return folder / "writing"


def begin(place: Path) -> None:
    """Have a draft's place, and nothing in it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)


def commit(place: Path, step: int, record: dict[str, Any], keep: int = 2) -> Path:
    """Make what was written to a draft the checkpoint of a step."""
    folder = place.parent
    final = folder / f"step-{step:08d}"
    about = {"step": step, "parts": len(_parts(place)), **record}
    write_text(place / "record.json", json.dumps(about, indent=2) + "\n")
    sync(place)
    if final.exists():  # the same step, saved again: the one there is as good
        shutil.rmtree(place)
        return final
    place.rename(final)
    sync(folder)
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)  # on a network disk it stays while somebody reads it
    return final


def _all(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; what else is called step-something is not ours."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    found = _all(folder)
    return found[-1] if found else None


def record(path: Path, entries: Sequence[str] = ()) -> dict[str, Any]:
    """What a checkpoint says of itself, with these entries in it."""
    if not (path / "record.json").is_file():
        raise ValueError(f"{path} is not a checkpoint: it has no record.json; {_ELSE}")
    try:
        found = json.loads((path / "record.json").read_text())
    except ValueError as error:
        raise ValueError(f"The checkpoint {path} is damaged ({error}); {_ELSE}") from error
    if not isinstance(found, dict) or not {"step", *entries} <= set(found):
        raise ValueError(f"The checkpoint {path} is damaged (its record.json is not one); {_ELSE}")
    return found


def is_sharded(path: Path) -> bool:
    """Whether several processes wrote a checkpoint, each its part; all parts are there then."""
    found, parts = len(_parts(path)), record(path).get("parts", 0)
    if found != parts:
        raise ValueError(f"The checkpoint {path} is damaged ({found} of its {parts} parts are there); {_ELSE}")
    return found > 0


def _parts(path: Path) -> list[Path]:
    return list(path.glob("shard-*.safetensors"))


def load(path: Path, group: str) -> dict[str, Tensor]:
    """A group of tensors of a checkpoint, all of them."""
    written = is_sharded(path)
    with _said(path):
        if not written:
            return load_file(path / f"{group}.safetensors")
        from tmatch.train import sharded  # a second of imports that others do without

        tensors = {name: torch.empty(shape) for name, shape in sharded.shapes(path)[group].items()}
        sharded.fill(path, {group: tensors})
        return tensors


def fill(path: Path, tensors: Tensors, like: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Give tensors, which may be spread over processes, their values in a checkpoint.

    `like` lays a whole tensor out as another is.
    """
    written = is_sharded(path)
    with _said(path):
        if written:
            from tmatch.train import sharded  # a second of imports that others do without

            _require_same(path, sharded.shapes(path), tensors)
            sharded.fill(path, tensors)
            return
        _require_same(path, _shapes(path, list(tensors)), tensors)
        for name, group in tensors.items():
            saved = load_file(path / f"{name}.safetensors")
            with torch.no_grad():
                for key, tensor in group.items():
                    tensor.copy_(like(saved[key], tensor))


def _shapes(path: Path, groups: Sequence[str]) -> Shapes:
    found: Shapes = {}
    for group in groups:
        with safe_open(path / f"{group}.safetensors", "pt") as file:
            found[group] = {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return found


def _require_same(path: Path, saved: Shapes, tensors: Tensors) -> None:
    for group, own in tensors.items():
        for name in sorted({*own, *saved.get(group, {})}):
            there, mine = saved.get(group, {}).get(name), own[name].shape if name in own else None
            if there != mine:
                shapes = [list(shape) if shape is not None else "not there" for shape in (there, mine)]
                reason = f"{group} {name} is {shapes[0]} in it and {shapes[1]} here."
                raise Mismatch(f"The checkpoint {path} is of another architecture: {reason}")


class Mismatch(ValueError):
    """A checkpoint is whole, and of something else."""


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """What goes wrong with a damaged checkpoint, in a sentence."""
    try:
        yield
    except Mismatch:
        raise
    except FileNotFoundError as error:
        raise ValueError(f"The checkpoint {path} is damaged ({Path(str(error)).name} is missing); {_ELSE}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"The checkpoint {path} is damaged ({error}); {_ELSE}") from error


_ELSE = "remove its folder to go back to the one before, or start anew."
