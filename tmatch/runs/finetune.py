"""Fine-tuning: start from a trained model, whole or in part, and leave as much of it as it was as you like."""

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, model_validator
from torch import Tensor, nn

from tmatch.files import locked, write_text
from tmatch.model import Model
from tmatch.rng import seeded_init
from tmatch.conditioning import Conditioner, WordEncoder
from tmatch.train import GeneratorTask, checkpoint
from tmatch.config import Config

Weights = dict[str, Tensor]
WORDS = "encoder.words.weight"


class StartSettings(Config):
    """A trained model to start from."""

    model: str | None = None  # by name or folder; what fits of it is taken, and the rest is new
    freeze: bool = False  # leave all that is taken as it is, but for the table of words where some are new
    lora: int = Field(default=0, ge=0)  # leave its backbone as it is but for changes of this rank; 0 is without

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if self.model is None and (self.freeze or self.lora):
            raise ValueError("Only what is trained is worth keeping: set init.model.")
        if self.freeze and self.lora:
            raise ValueError("A backbone is left as it is, or changed by LoRA: leave out init.freeze or init.lora.")
        return self

    def apply(self, task: GeneratorTask, seed: int, out: Path, first: bool) -> None:
        """Give a new task the weights of the model, and hold those that are not to change.

        A run that has begun has weights of its own, and the model may be gone: which were taken is kept in `out`.
        """
        if self.model is None:
            return
        taken, kept = [], out / "taken.json"
        if checkpoint.latest(out) is not None:
            taken = _kept(kept)
        else:
            taken = self._load(task, self.model)
            if first:
                with locked(out):
                    write_text(kept, json.dumps(taken, indent=1) + "\n")
                whole = len(taken) == len(task.state_dict())
                said = f"all {len(taken)} weights are taken from" if whole else f"{len(taken)} weights are taken from"
                print(f"tmatch: {said} {self.model}{'' if whole else ', the rest is new'}", file=sys.stderr)
        self._freeze(task, taken, task.model.kernel.backbone, seed)
        if not any(parameter.requires_grad for parameter in task.parameters()):
            raise ValueError(f"{self.model} fits whole, and with init.freeze nothing is left to train; leave it out.")

    def preflight(self, model: Model) -> None:
        """Hold what training would, of a model that is only planned: by names and shapes, for no weight is read."""
        taken = self.require_fit(model) if self.freeze else set[str]()
        if self.model is not None:
            self._freeze(nn.ModuleDict({"model": model}), taken, model.kernel.backbone, seed=0)

    def require_fit(self, model: Model) -> set[str]:
        """Refuse a model to start from that is not there or does not fit; the names of what would be taken of it."""
        if self.model is None:
            return set()
        from tmatch.runs.load import about_model  # which knows every recipe, hence this module

        folder, about = about_model(self.model)
        own, theirs = (nn.ModuleDict({"model": one}).state_dict() for one in (model, about.network(folder)))
        return set(matching(own, theirs, self.model, _sizes(about.recipe.backbone)))

    def _freeze(self, task: nn.Module, taken: Collection[str], backbone: nn.Module, seed: int) -> None:
        """Leave as it is what was taken, or the backbone but for LoRA."""
        for name, parameter in task.named_parameters():
            if self.freeze and name in taken:
                parameter.requires_grad_(False)
        if self.lora:
            with seeded_init(seed):
                add_lora(backbone, self.lora)

    @staticmethod
    def _load(task: GeneratorTask, name: str) -> list[str]:
        from tmatch.runs.load import read_model  # which knows every recipe, hence this module

        _, about, weights = read_model(name)
        return load_matching(task, getattr(about, "vocabulary", ()), weights, name, _sizes(about.recipe.backbone))


def _kept(file: Path) -> list[str]:
    """The names of what a run took when it began."""
    try:
        names = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{file.parent} holds a run that did not start from a model; give a new folder.") from error
    except ValueError as error:
        raise ValueError(f"{file} is damaged, and so what is frozen is not known; give a new folder.") from error
    return [str(name) for name in names]


def load_matching(task: GeneratorTask, vocabulary: Sequence[str], theirs: Weights, name: str, sizes: str) -> list[str]:
    """Copy every weight that has the same name and shape, all of the backbone's among them; their names.

    Words are left out of these where some are new, and have yet to be learnt. A backbone that does not fit is refused
    with the `sizes` that would.
    """
    own = task.state_dict()
    new = align_vocabulary(task.encoder, vocabulary, own, theirs)
    fit = matching(own, theirs, name, sizes)
    task.load_state_dict(fit, strict=False)
    return sorted(fit.keys() - {WORDS}) if new else sorted(fit)


def matching(own: Weights, theirs: Weights, name: str, sizes: str) -> Weights:
    """Those of their weights that have the name and shape of one of our own, all of the backbone's among them."""
    fit = {key: weight for key, weight in theirs.items() if key in own and weight.shape == own[key].shape}
    prefix = "model.kernel.backbone."
    missing = [key for key in own if key.startswith(prefix) and key not in fit]
    if missing:
        layer = missing[0]
        there = f"is {_shape(theirs[layer])} there" if layer in theirs else "is not there"
        raise ValueError(
            f"{name} has another backbone ({layer.removeprefix(prefix)} {there}, and {_shape(own[layer])} here); give "
            f"the recipe the sizes of its backbone, {sizes}, and data like its own, or train anew."
        )
    return fit


def _sizes(backbone: BaseModel) -> str:
    """The options that would give a backbone its sizes."""
    return " ".join(f"--backbone.{size} {getattr(backbone, size)}" for size in ("kind", "width", "depth", "heads"))


def _shape(weight: Tensor) -> str:
    return " x ".join(map(str, weight.shape))


def align_vocabulary(now: Conditioner, vocabulary: Sequence[str], own: Weights, theirs: Weights) -> bool:
    """Have the vectors of words stand where the new vocabulary has those words; a new word keeps a new vector.

    The answer is whether there are any.
    """
    if not isinstance(now, WordEncoder) or WORDS not in theirs or theirs[WORDS].shape[1] != now.width:
        return False
    rows = {word: row for row, word in enumerate(vocabulary, start=2)}
    moved = own[WORDS].clone()
    moved[:2] = theirs[WORDS][:2]
    for index, word in enumerate(now.vocabulary, start=2):
        if word in rows:
            moved[index] = theirs[WORDS][rows[word]]
    theirs[WORDS] = moved
    return not rows.keys() >= set(now.vocabulary)


def add_lora(backbone: nn.Module, rank: int) -> None:
    """W + B A in the place of every W of the blocks, with B = 0 at first; nothing else of the backbone is trained."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError("LoRA needs peft: pip install 'tmatch[lora]'.") from error
    layers = [
        name for name, module in backbone.named_modules() if isinstance(module, nn.Linear) and name.startswith("blocks")
    ]
    if not layers:
        raise ValueError(f"{type(backbone).__name__} has no blocks for LoRA to change; leave out init.lora.")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=layers), backbone)


BASE = ".base_layer."


def merge_lora(weights: Weights) -> Weights:
    """Weights with LoRA's changes in them, under the names they have without: W + B A."""
    plain: Weights = {}
    for name, weight in weights.items():
        layer, base, kind = name.partition(BASE)
        if base and kind == "weight":
            down, up = (weights[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            weight = weight + up @ down
        if base:
            plain[f"{layer}.{kind}"] = weight
        elif ".lora_" not in name:
            plain[name] = weight
    return plain
