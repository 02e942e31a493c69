"""Fine-tuning: initialize from a trained model, and freeze what should not change."""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tmatch.datasets import Encoders
from tmatch.extras import needs_extra
from tmatch.files import locked, write_text
from tmatch.migrate import migrate_weight_name
from tmatch.model import Model
from tmatch.ranks import rank_and_world_size
from tmatch.reading import described
from tmatch.rng import seeded_init
from tmatch.runs.config import BackboneConfig, InitConfig, ModelConfig
from tmatch.runs.load import read_config, read_model
from tmatch.train import GeneratorTask, checkpoint

Weights = dict[str, Tensor]
TABLES = {"words": "encoder.words.weight", "labels": "encoder.table.weight"}
"""Tables of vectors whose rows belong to words or classes, by kind of conditioner."""
LOADED = "init.json"
"""Names of the weights that a run was initialized with, in its folder."""


def apply_init(init: InitConfig, task: GeneratorTask, encoders: Encoders, seed: int, out: Path) -> None:
    """Load the weights of `init.model`, whose frozen encoders must be the same, and freeze what is not to be trained.

    A resumed run has its own weights, and the model may be gone: the names of what was loaded are kept in `out`.
    """
    if init.model is None:
        return
    if checkpoint.latest(out) is not None:
        names = _loaded_names(out)
    else:
        _, config, weights = read_model(init.model)
        encoders.require_same(config.encoders, init.model)
        names = load_matching(task, encoders, config, weights, init.model)
        if rank_and_world_size()[0] == 0:
            with locked(out):
                write_text(out / LOADED, json.dumps(names, indent=1) + "\n")
            rest = "" if len(names) == len(task.state_dict()) else "; the rest are newly initialized"
            print(f"tmatch: loaded {len(names)} tensors from {init.model}{rest}", file=sys.stderr)
    _freeze(init, task, names, task.model.kernel.backbone, seed)
    if not any(parameter.requires_grad for parameter in task.parameters()):
        raise ValueError(f"All weights come from {init.model}, and init.freeze leaves none to train: leave it out.")


def preflight_init(init: InitConfig, model: Model) -> None:
    """Freeze what training freezes, of a model on the meta device: by names and shapes, since no weight is read."""
    names = matching_names(init, model) if init.freeze else set[str]()
    if init.model is not None:
        _freeze(init, nn.ModuleDict({"model": model}), names, model.kernel.backbone, seed=0)


def matching_names(init: InitConfig, model: Model) -> set[str]:
    """Names of the weights that `init.model` would give a model; an error if it does not exist or does not fit."""
    if init.model is None:
        return set()
    folder, config = read_config(init.model)
    codes = config.encoders.codebook_size(folder)
    other = config.run.network(config.shape, config.encoders.condition_width, codes)
    own, theirs = (nn.ModuleDict({"model": one}).state_dict() for one in (model, other))
    return set(matching(own, theirs, init.model, config.run.backbone))


def _freeze(init: InitConfig, task: nn.Module, names: Collection[str], backbone: nn.Module, seed: int) -> None:
    for name, parameter in task.named_parameters():
        if init.freeze and name in names:
            parameter.requires_grad_(False)
    if init.lora:
        with seeded_init(seed):
            _add_lora(backbone, init.lora)


def _add_lora(backbone: nn.Module, rank: int) -> None:
    """Replace every W of the blocks by W + B A, with B = 0 at first, and train A and B only."""
    with needs_extra("LoRA", "lora"):
        from peft import LoraConfig, inject_adapter_in_model
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    layers = [name for name in linear if name.startswith("blocks")]
    if not layers:
        raise ValueError(f"{type(backbone).__name__} has no blocks to apply LoRA to: leave out init.lora.")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=layers), backbone)


def _loaded_names(out: Path) -> list[str]:
    """Names of the weights that the run in `out` was initialized with."""
    for file in (out / LOADED, out / "taken.json"):  # the second is the name of format 1
        if file.is_file():
            try:
                return [migrate_weight_name(name) for name in json.loads(file.read_text())]
            except ValueError as error:
                raise ValueError(f"{file} is damaged, so the frozen weights are unknown; use a new --out.") from error
    raise ValueError(f"The run in {out} did not start from a model; use a new --out.")


def load_matching(
    task: GeneratorTask, encoders: Encoders, config: ModelConfig, theirs: Weights, name: str
) -> list[str]:
    """Copy every weight of the same name and shape, including the whole backbone; returns the names.

    The vectors of words or classes do not count as loaded if some are new and have to be learned.
    """
    own = task.state_dict()
    grown = align_vocabulary(encoders, config.encoders, own, theirs)
    fit = matching(own, theirs, name, config.run.backbone)
    task.load_state_dict(fit, strict=False)
    return sorted(fit.keys() - grown)


def matching(own: Weights, theirs: Weights, name: str, backbone: BackboneConfig) -> Weights:
    """Their weights that have the name, kind and shape of one of ours; the backbone must match completely."""
    fit = {key: weight for key, weight in theirs.items() if key in own and described(weight) == described(own[key])}
    prefix = "model.kernel.backbone."
    missing = [key for key in own if key.startswith(prefix) and key not in fit]
    if missing:
        layer = missing[0]
        there = f"is {described(theirs[layer])} there" if layer in theirs else "does not exist there"
        sizes = " ".join(f"--backbone.{key} {getattr(backbone, key)}" for key in ("kind", "width", "depth", "heads"))
        raise ValueError(
            f"{name} has another backbone ({layer.removeprefix(prefix)} {there}, {described(own[layer])} here): "
            f"use {sizes} and data of the same shape, or train without init.model."
        )
    return fit


def align_vocabulary(encoders: Encoders, others: Encoders, own: Weights, theirs: Weights) -> set[str]:
    """Move the vectors of their words or classes to our rows, in `theirs`; the table, if some of our rows are new."""
    (key, rows), (other, known) = _table(encoders), _table(others)
    if key != other or key not in own or key not in theirs or own[key].shape[1] != theirs[key].shape[1]:
        return set()
    moved = own[key].clone()
    for name in rows.keys() & known.keys():
        moved[rows[name]] = theirs[key][known[name]]
    theirs[key] = moved
    return set() if rows.keys() <= known.keys() else {key}


def _table(encoders: Encoders) -> tuple[str, dict[Any, int]]:
    """The table of vectors that a conditioner trains: its weight, and what each row stands for."""
    conditioning = encoders.conditioning or {}
    names = [0, 1, *conditioning.get("vocabulary", ())]  # words follow the start token and an unused row
    if "classes" in conditioning:
        names = [*conditioning["classes"], None]  # the null class is the last
    return TABLES.get(conditioning.get("kind", ""), ""), {name: row for row, name in enumerate(names)}
