"""Fine-tuning: initialize from a trained model, and freeze what should not change."""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from tmatch.backbone import HuggingFaceBackbone
from tmatch.datasets import Encoders
from tmatch.extras import needs_extra
from tmatch.files import locked, write_text
from tmatch.migrate import migrate_weight_name
from tmatch.model import Model
from tmatch.ranks import rank_and_world_size
from tmatch.reading import described
from tmatch.rng import seeded_init
from tmatch.runs.config import BackboneConfig, InitConfig, ModelConfig, RunConfig
from tmatch.runs.language_model import load_language_model, pretrained_names
from tmatch.runs.load import is_model, read_config, read_model
from tmatch.train import GeneratorTask, checkpoint

Weights = dict[str, Tensor]
BACKBONE, HEAD = "model.kernel.backbone.", "model.kernel.distribution."
TABLES = {"words": "encoder.words.weight", "labels": "encoder.table.weight"}
"""Tables of vectors whose rows belong to words or classes, by kind of conditioner."""
LOADED = "init.json"
"""Names of the weights that a run was initialized with, in its folder."""


def apply_init(run: RunConfig, task: GeneratorTask, encoders: Encoders, out: Path) -> None:
    """Load the weights that a run starts from, and freeze what is not to be trained.

    A resumed run has its own weights, and the model may be gone: the names of what was loaded are kept in `out`.
    """
    init, source = run.init, run.init.model or run.backbone.model
    if not (init.model or init.pretrained):
        return
    if checkpoint.latest(out) is not None:
        names = _loaded_names(out)
    else:
        names = _load_pretrained(run, task) if init.model is None else _load_trained(init.model, task, encoders)
        if rank_and_world_size()[0] == 0:
            with locked(out):
                write_text(out / LOADED, json.dumps(names, indent=1) + "\n")
            rest = "" if len(names) == len(task.state_dict()) else "; the rest are newly initialized"
            print(f"tmatch: loaded {len(names)} tensors from {source}{rest}", file=sys.stderr)
    _freeze(init, task, names, task.model, run.train.seed)
    if not any(parameter.requires_grad for parameter in task.parameters()):
        raise ValueError(f"All weights come from {source}, and init.freeze leaves none to train: leave it out.")


def _load_trained(name: str, task: GeneratorTask, encoders: Encoders) -> list[str]:
    """Load a trained model, whose frozen encoders must be the same; returns the names of the weights."""
    _, config, weights = read_model(name)
    encoders.require_same(config.encoders, name)
    return load_matching(task, encoders, config, weights, name)


def _load_pretrained(run: RunConfig, task: GeneratorTask) -> list[str]:
    backbone = task.model.kernel.backbone
    assert isinstance(backbone, HuggingFaceBackbone)
    return [f"{BACKBONE}model.{name}" for name in load_language_model(backbone, run.backbone.model)]


def preflight_init(init: InitConfig, model: Model) -> None:
    """Freeze what training freezes, of a model on the meta device: by names and shapes, since no weight is read.

    A model to start from that is not trained yet is assumed to have all weights but the head's.
    """
    names = set[str]()
    if init.freeze and init.model is not None and not is_model(init.model):
        print(
            f"tmatch: {init.model} does not exist yet: all weights but the head's are assumed from it", file=sys.stderr
        )
        names = {name for name in nn.ModuleDict({"model": model}).state_dict() if not name.startswith(HEAD)}
    elif init.freeze:
        names = matching_names(init, model)
    if init.model or init.pretrained:
        _freeze(init, nn.ModuleDict({"model": model}), names, model, seed=0)


def matching_names(init: InitConfig, model: Model) -> set[str]:
    """Names of the weights that a model would start from; an error if they do not exist or do not fit."""
    if init.pretrained:
        backbone = model.kernel.backbone
        assert isinstance(backbone, HuggingFaceBackbone)
        return {f"{BACKBONE}model.{name}" for name in pretrained_names(backbone)}
    if init.model is None:
        return set()
    folder, config = read_config(init.model)
    other = config.network(config.encoders.codebook_size(folder))
    own, theirs = (nn.ModuleDict({"model": one}).state_dict() for one in (model, other))
    return set(matching(own, theirs, init.model, config.run.backbone))


def _freeze(init: InitConfig, task: nn.Module, names: Collection[str], model: Model, seed: int) -> None:
    for name, parameter in task.named_parameters():
        if init.freeze and name in names:
            parameter.requires_grad_(False)
    if init.lora:
        backbone = model.kernel.backbone
        with seeded_init(seed):  # a pretrained language model is inside its backbone, whose other layers are new
            _add_lora(cast("nn.Module", backbone.model) if init.pretrained else backbone, init.lora)


def _add_lora(backbone: nn.Module, rank: int) -> None:
    """Replace every W of the blocks by W + B A, with B = 0 at first, and train A and B only."""
    with needs_extra("LoRA", "lora"):
        from peft import LoraConfig, inject_adapter_in_model
    lists = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
    blocks = {layer for blocks in lists for layer in blocks.modules() if isinstance(layer, nn.Linear)}
    layers = [name for name, module in backbone.named_modules() if module in blocks]
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
    grown = align_rows(encoders, config.encoders, own, theirs)
    fit = matching(own, theirs, name, config.run.backbone)
    task.load_state_dict(fit, strict=False)
    return sorted(fit.keys() - grown)


def matching(own: Weights, theirs: Weights, name: str, backbone: BackboneConfig) -> Weights:
    """Their weights that have the name, kind and shape of one of ours; the backbone must match completely."""
    fit = {key: weight for key, weight in theirs.items() if key in own and described(weight) == described(own[key])}
    missing = [key for key in own if key.startswith(BACKBONE) and key not in fit]
    if missing:
        layer = missing[0]
        there = f"is {described(theirs[layer])} there" if layer in theirs else "does not exist there"
        sizes = " ".join(
            f"--backbone.{key} {value}" for key, value in backbone if key != "checkpointing" and value is not None
        )
        raise ValueError(
            f"{name} has another backbone ({layer.removeprefix(BACKBONE)} {there}, {described(own[layer])} here): "
            f"use {sizes} and data of the same shape, or train without init.model."
        )
    return fit


def align_rows(encoders: Encoders, others: Encoders, own: Weights, theirs: Weights) -> set[str]:
    """Move the vectors of their words or classes to our rows, in `theirs`; the table's name if some of ours are new."""
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
