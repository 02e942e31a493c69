"""Trained models: those that ship with the package, and those that runs write."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tmatch.codec import Patchify
from tmatch.config import did_you_mean
from tmatch.generation import TextToImage
from tmatch.hub import HubOptions, download
from tmatch.migrate import migrate_model, migrate_weight_name
from tmatch.model import Model
from tmatch.rng import seeded_init
from tmatch.runs.config import ModelConfig
from tmatch.train import checkpoint

_PACKAGE = Path(str(files("tmatch"))) / "weights"
HUB = "hf:"
"""Prefix of the name of a model on the hub."""
MODELS = tuple(sorted(folder.parent.name for folder in _PACKAGE.glob("*/model.json")))
"""The models that ship with the package."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, its configuration, and its folder."""

    pipeline: TextToImage
    config: ModelConfig
    folder: Path


def load_model(name: str, hub: HubOptions = HubOptions()) -> LoadedModel:
    """Load a model by the name of a shipped one, by the folder of a run, or by `hf:owner/name`.

    The weights are the averaged ones: those of the finished run, or of the newest checkpoint of an unfinished one. From
    the hub, only JSON, text and safetensors files are read.
    """
    folder, config, weights = read_model(name, hub)
    with seeded_init(config.run.train.seed):
        conditioner = config.encoders.conditioner(folder, hub)
        model = build_network(config, folder)
    codec = config.encoders.codec(Patchify(config.run.patch), folder, hub)
    pipeline = TextToImage(model, conditioner, codec, config.shape, config.grids)
    try:
        pipeline.trained().load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"The weights in {_weights_in(folder)} do not fit its model.json: {reason}") from error
    return LoadedModel(pipeline.requires_grad_(False).eval(), config, folder)


def build_network(config: ModelConfig, folder: Path) -> Model:
    """The generator alone, without its weights."""
    encoders = config.encoders
    return config.run.network(config.shape, encoders.condition_width, encoders.codebook_size(folder))


def read_config(name: str, hub: HubOptions = HubOptions()) -> tuple[Path, ModelConfig]:
    """The folder of a model and its configuration; the weights are not read."""
    folder = _folder(name, hub)
    file = folder / "model.json"
    try:
        return folder, ModelConfig.model_validate_json(json.dumps(migrate_model(json.loads(file.read_bytes()))))
    except ValidationError as error:
        reason = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
        raise ValueError(f"{file} does not describe a model of this version ({reason}).") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} does not describe a model ({error}).") from error


def read_model(name: str, hub: HubOptions = HubOptions()) -> tuple[Path, ModelConfig, dict[str, Tensor]]:
    """As `read_config`, with the averaged weights; no network is built."""
    folder, config = read_config(name, hub)
    file = _weights_in(folder)
    try:
        tensors = checkpoint.load(file, "ema") if file.is_dir() else load_file(file)
        return folder, config, {migrate_weight_name(key): x.float() for key, x in merge_lora(tensors).items()}
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise ValueError(f"{file} is damaged ({error}); copy it again or train the model again.") from error


def merge_lora(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under their plain names, with W + B A merged."""
    plain: dict[str, Tensor] = {}
    for name, weight in weights.items():
        layer, base, kind = name.partition(".base_layer.")
        if base and kind == "weight":
            down, up = (weights[f"{layer}.lora_{part}.default.weight"] for part in "AB")
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
    choices = f"the folder of a run, {HUB}owner/name for a model on the hub, or one of {', '.join(MODELS)}"
    raise ValueError(f"There is no model '{name}'{did_you_mean(name, MODELS)}; give {choices}.")


def _weights_in(folder: Path) -> Path:
    """The file of the averaged weights, or the newest checkpoint."""
    if (folder / "model.safetensors").is_file():
        return folder / "model.safetensors"
    newest = checkpoint.latest(folder)
    if newest is None:
        raise ValueError(f"{folder} has no weights yet: its run has not written a checkpoint.")
    return newest
