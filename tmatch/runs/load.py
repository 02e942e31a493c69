"""Trained models: those that ship with the package, and those that runs write."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from tmatch.codec import Patchify
from tmatch.conditioning import Conditioner
from tmatch.config import did_you_mean
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig
from tmatch.generation.presets import PRESETS, Preset, Presets
from tmatch.hub import HubOptions, download
from tmatch.migrate import migrate_model, migrate_weight_name
from tmatch.model import Model
from tmatch.reading import contained, first_line, intact, load_network, read_json, read_weights, require_finite_weights
from tmatch.runs.config import ModelConfig
from tmatch.train import checkpoint

_PACKAGE = Path(str(files("tmatch"))) / "weights"
HUB = "hf:"
"""Prefix of the name of a model on the hub."""
MODELS = tuple(sorted(folder.parent.name for folder in _PACKAGE.glob("*/model.json")))
"""The models that ship with the package."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, its configuration, its folder, and the presets that `tmatch tune` chose, if it did.

    `step` is that of the checkpoint of an unfinished run, whose averaged weights it has.
    """

    pipeline: TextToImage
    config: ModelConfig
    folder: Path
    presets: Presets | None = None
    step: int | None = None

    def sampling(self, preset: str | None = None) -> SamplingConfig:
        """The settings of a preset; by default those of 'balanced', or of the run if there are no presets."""
        if self.presets is None and preset is None:
            return self.config.run.sampling
        found: Mapping[str, Preset] = {} if self.presets is None else dict(self.presets.presets.items())
        if (name := "balanced" if preset is None else str(preset)) not in found:
            choices = f"has {', '.join(found)} of `tmatch tune`" if found else "has none; `tmatch tune` chooses them"
            raise ValueError(f"There is no preset '{name}'{did_you_mean(name, found)}: {self.folder.name} {choices}.")
        return found[name].sampling


def load_model(name: str | Path, hub: HubOptions = HubOptions()) -> LoadedModel:
    """Load a model by the name of a shipped one, by the folder of a run, or by `hf:owner/name`.

    The weights are the averaged ones: those of the finished run, or of the newest checkpoint of an unfinished one. From
    the hub, only JSON, text and safetensors files are read, and no other local files that the model may name.
    """
    name = str(name)
    folder, config, weights = read_model(name, hub)
    presets = read_presets(folder)
    if name.startswith(HUB) or folder.resolve().parent.name == "snapshots":
        hub = replace(hub, within=folder)
    encoders, open_codec = config.encoders, partial(config.encoders.codec, Patchify(config.run.patch), folder, hub)
    own = encoders.conditioning
    codec = None if own is None else open_codec()
    codes = encoders.codebook_size(folder) if codec is None else codec.codebook_size

    def build() -> nn.ModuleDict:
        parts: dict[str, nn.Module] = {"model": config.network(codes)}
        return nn.ModuleDict(parts if own is None else {**parts, "encoder": encoders.conditioner(folder)})

    blocks = (config.run.backbone.depth, config.run.head.depth, (own or {}).get("depth", 0))
    networks = load_network(build, weights, blocks, f"{_weights_in(folder)} do not fit its model.json")
    model, conditioner = networks["model"], encoders.conditioner(folder, hub) if own is None else networks["encoder"]
    assert isinstance(model, Model)
    assert isinstance(conditioner, Conditioner)
    codec, channels = codec or open_codec(), config.shape[-1]
    pixels = torch.zeros(1, channels // prod(config.run.patch) if codec.latent else 3, *codec.token)
    if channels % prod(config.run.patch) or codec.encode(pixels).shape[-1] != channels:
        raise ValueError(f"{folder / 'model.json'} does not fit its autoencoder: a token has {channels} numbers.")
    pipeline = TextToImage(model, conditioner, codec, config.shape, config.grids)
    return LoadedModel(pipeline.requires_grad_(False).eval(), config, folder, presets, _unfinished(folder, config))


def _unfinished(folder: Path, config: ModelConfig) -> int | None:
    """The step of the checkpoint that stands for an unfinished run; says so."""
    checkpoint_folder = _weights_in(folder)
    if checkpoint_folder.is_file():
        return None
    step = int(checkpoint_folder.name.removeprefix("step-"))
    print(f"tmatch: {folder} is not finished: loaded step {step:,} of {config.run.train.steps:,}", file=sys.stderr)
    return step


def is_model(name: str) -> bool:
    """Whether a model of that name ships with the package, may be on the hub, or is at that path."""
    return name in MODELS or name.startswith(HUB) or Path(name).exists()


def read_config(name: str, hub: HubOptions = HubOptions()) -> tuple[Path, ModelConfig]:
    """The folder of a model and its configuration; the weights are not read."""
    folder = _folder(name, hub)
    file = folder / "model.json"
    with _valid(file, "a model"):
        return folder, ModelConfig.model_validate_json(json.dumps(migrate_model(read_json(file))))


def read_presets(folder: Path) -> Presets | None:
    """The presets of a model, if it has any."""
    file = folder / PRESETS
    if not (file.exists() or file.is_symlink()):
        return None
    with _valid(file, "presets"):
        return Presets.model_validate_json(json.dumps(read_json(contained(file))))


@contextmanager
def _valid(file: Path, what: str) -> Iterator[None]:
    """Raise the errors of a JSON file as one sentence."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not describe {what} of this version ({first_line(error)}).") from error


def read_model(name: str, hub: HubOptions = HubOptions()) -> tuple[Path, ModelConfig, dict[str, Tensor]]:
    """As `read_config`, with the averaged weights; no network is built."""
    folder, config = read_config(name, hub)
    file = _weights_in(folder)
    with intact(file):
        tensors = checkpoint.load(file, "ema") if file.is_dir() else read_weights(file)
        weights = {migrate_weight_name(key): x for key, x in merge_lora(tensors).items()}
    require_finite_weights(weights, file)
    return folder, config, weights


def merge_lora(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under their plain names, with W + B A merged."""
    plain: dict[str, Tensor] = {}
    for name, weight in weights.items():
        layer, base, kind = name.partition(".base_layer.")
        if base and kind == "weight":
            down, up = (weights[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            if (len(up), *down.shape[1:]) != weight.shape:
                raise RuntimeError(f"the LoRA weights of {layer} do not fit")
            weight = weight + up @ down
        if base or ".lora_" not in name:
            plain[f"{layer}.{kind}" if base else name] = weight
    return plain


def _folder(name: str, hub: HubOptions) -> Path:
    if name in MODELS:
        return _PACKAGE / name
    if name.startswith(HUB):
        return download(name.removeprefix(HUB), hub=hub)
    folder = Path(name)
    if (folder / "model.json").is_file():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is not a trained model, since it has no model.json; give the folder of a run.")
    hint = "" if "/" in name else did_you_mean(name, MODELS)
    choices = f"the folder of a run, {HUB}owner/name for a model on the hub, or one of {', '.join(MODELS)}"
    raise ValueError(f"There is no model '{name}'{hint}; give {choices}.")


def _weights_in(folder: Path) -> Path:
    """The file of the averaged weights, or the newest checkpoint."""
    if (folder / "model.safetensors").is_file():
        return folder / "model.safetensors"
    newest = checkpoint.latest(folder)
    if newest is None:
        raise ValueError(f"{folder} has no weights yet: its run has not written a checkpoint.")
    return newest
