"""Trained models: those that come with the package, and those that runs leave behind."""

import json
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tmatch.hub import HubOptions, download
from tmatch.runs.generator import About, GeneratorRecipe
from tmatch.runs.settings import Data
from tmatch.migrate import migrate_encoders, migrate_settings, migrate_weight_name
from tmatch.runs.shards import AboutShards, ShardRecipe
from tmatch.runs.finetune import merge_lora
from tmatch.generation import TextToImage
from tmatch.train import checkpoint

_PACKAGE = Path(str(files("tmatch"))) / "weights"
HUB = "hf:"
"""What the name of a model on the hub begins with."""
MODELS = tuple(sorted(folder.parent.name for folder in _PACKAGE.glob("*/model.json")))
"""The models that come with the package."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, what it says of itself, and where it is."""

    pipeline: TextToImage
    about: About | AboutShards
    folder: Path


def load_model(name: str) -> tuple[TextToImage, GeneratorRecipe[Data] | ShardRecipe]:
    """A model by the name of one that comes with the package or by the folder of a run, and the recipe that made it.

    The averaged weights: those of the finished run, or of its newest checkpoint while it goes on. A model of the hub is
    named `hf:owner/name`; of it only JSON, text and safetensors are read.
    """
    opened = open_model(name)
    return opened.pipeline, opened.about.recipe


def open_model(name: str, hub: HubOptions = HubOptions()) -> LoadedModel:
    """As `load_model`, with all there is to know; encoders of the hub are asked for by that `hub`."""
    folder, about, weights = read_model(name)
    pipeline = about.pipeline(folder, hub)
    try:
        pipeline.trained().load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(
            f"{_weights_in(folder)} is of another architecture than its model.json says: {reason}"
        ) from error
    return LoadedModel(pipeline.requires_grad_(False).eval(), about, folder)


def about_model(name: str) -> tuple[Path, About | AboutShards]:
    """Where a model is, and what it says of itself; its weights are not read."""
    folder = _folder(name)
    try:
        return folder, _about((folder / "model.json").read_bytes())
    except ValidationError as error:
        reason = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
        raise ValueError(f"{folder / 'model.json'} does not describe a model of this version ({reason}).") from error


def read_model(name: str) -> tuple[Path, About | AboutShards, dict[str, Tensor]]:
    """As `about_model`, and its averaged weights; nothing is built, nor an encoder opened."""
    folder, about = about_model(name)
    file = _weights_in(folder)
    try:
        tensors = checkpoint.load(file, "ema") if file.is_dir() else load_file(file)
        return folder, about, {migrate_weight_name(name): tensor.float() for name, tensor in merge_lora(tensors).items()}
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise ValueError(f"{file} is damaged ({error}); copy it again, or train it anew.") from error


def _about(text: bytes) -> About | AboutShards:
    """What model.json says; that of a model of shards names its text encoder."""
    shards = False
    try:
        found = json.loads(text)
        shards = "text" in found
        text = json.dumps({**migrate_encoders(found), "recipe": migrate_settings(found["recipe"])}).encode()
    except (ValueError, TypeError, KeyError, AttributeError):  # it is not JSON, or no object: the validation says so
        pass
    return (AboutShards if shards else About).model_validate_json(text)


def _folder(name: str) -> Path:
    if name in MODELS:
        return _PACKAGE / name
    if name.startswith(HUB):
        return download(name.removeprefix(HUB))
    folder = Path(name)
    if (folder / "model.json").is_file():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is not a trained model: it has no model.json; give the folder of a run.")
    meant = get_close_matches(name, MODELS, n=1)
    hint = f" (did you mean '{meant[0]}'?)" if meant else ""
    raise ValueError(
        f"There is no model '{name}'{hint}; give the folder of a run, {HUB}owner/name of the hub, or one of "
        f"{', '.join(MODELS)}."
    )


def weights_of(name: str) -> Path:
    """The file of a model's averaged weights; or a checkpoint, where several processes wrote it together."""
    return _weights_in(_folder(name))


def _weights_in(folder: Path) -> Path:
    if (folder / "model.safetensors").is_file():
        return folder / "model.safetensors"
    newest = checkpoint.latest(folder)
    if newest is not None and checkpoint.is_sharded(newest):
        return newest
    if newest is None or not (newest / "ema.safetensors").is_file():
        raise ValueError(f"{folder} has no weights yet: its run has not written a checkpoint.")
    return newest / "ema.safetensors"
