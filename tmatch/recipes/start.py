"""Fine-tuning: start from a trained model, whole or in part, and leave as much of it as it was as you like."""

import sys
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from tmatch.recipes.settings import Strict
from tmatch.sample import TextToImage
from tmatch.text import TextEncoder, WordEncoder
from tmatch.train import GeneratorTask

Weights = dict[str, Tensor]


class StartSettings(Strict):
    """A trained model to start from."""

    model: str | None = None  # by name or folder; what fits of it is taken, and the rest is new
    freeze: bool = False  # leave its backbone as it is
    lora: int = Field(default=0, ge=0)  # leave its backbone as it is but for changes of this rank; 0 is without

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if self.model is None and (self.freeze or self.lora):
            raise ValueError("Only a trained backbone is worth keeping: set start.model.")
        if self.freeze and self.lora:
            raise ValueError("A backbone is left as it is, or changed by LoRA: leave out start.freeze or start.lora.")
        return self

    def apply(self, task: GeneratorTask, seed: int, begun: bool) -> None:
        """Give a new task the weights of the model, and hold those that are not to change.

        A run that has begun has weights of its own, and the model may be gone.
        """
        if self.model is not None and not begun:
            from tmatch.recipes.models import load_model  # which knows every recipe, hence this module

            taken = take(task, load_model(self.model)[0], self.model)
            print(f"tmatch: {taken} weights of {self.model} are taken, the rest is new", file=sys.stderr, flush=True)
        backbone = task.model.kernel.backbone
        if self.freeze:
            backbone.requires_grad_(False)
        if self.lora:
            with torch.random.fork_rng():  # the caller's own generator stays as it is
                torch.manual_seed(seed)
                _adapt(backbone, self.lora)


def take(task: GeneratorTask, start: TextToImage, name: str) -> int:
    """Copy every weight that has the same name and shape, all of the backbone's among them; how many there are."""
    own, theirs = task.state_dict(), start.trained().state_dict()
    _same_words(task.encoder, start.encoder, own, theirs)
    fit = {key: weight for key, weight in theirs.items() if key in own and weight.shape == own[key].shape}
    prefix = "model.kernel.backbone."
    missing = [key for key in own if key.startswith(prefix) and key not in fit]
    if missing:
        raise ValueError(
            f"{name} has another backbone ({missing[0].removeprefix(prefix)} does not fit); give the recipe "
            "the sizes of its backbone and of its data, or train anew."
        )
    task.load_state_dict(fit, strict=False)
    return len(fit)


def _same_words(now: TextEncoder, then: TextEncoder, own: Weights, theirs: Weights) -> None:
    """Have the vectors of words stand where the new vocabulary has those words; a new word keeps a new vector."""
    name = "encoder.words.weight"
    if not isinstance(now, WordEncoder) or not isinstance(then, WordEncoder) or now.width != then.width:
        return
    moved = own[name].clone()
    moved[:2] = theirs[name][:2]
    for index, word in enumerate(now.vocabulary, start=2):
        if word in then.vocabulary:
            moved[index] = theirs[name][then.vocabulary.index(word) + 2]
    theirs[name] = moved


def _adapt(backbone: nn.Module, rank: int) -> None:
    """W + B A in the place of every W of the blocks, with B = 0 at first; nothing else of the backbone is trained."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError("LoRA needs peft: pip install 'tmatch[lora]'.") from error
    layers = [
        name for name, module in backbone.named_modules() if isinstance(module, nn.Linear) and name.startswith("blocks")
    ]
    if not layers:
        raise ValueError(f"{type(backbone).__name__} has no blocks for LoRA to change; leave out start.lora.")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=layers), backbone)


BASE = ".base_layer."


def merged(weights: Weights) -> Weights:
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
