"""A model as a self-contained folder: configuration, weights, a model card, and encoders that exist only locally."""

import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tmatch.codec.diffusers import PretrainedAutoencoder
from tmatch.codec.saved import SETTINGS, SHIPPED, WEIGHTS
from tmatch.conditioning.transformers import PretrainedText
from tmatch.data.manifest import Identity
from tmatch.datasets import ImageEncoders, ShardEncoders
from tmatch.datasets.images import AUTOENCODER
from tmatch.datasets.shards import TEXT_FOLDER
from tmatch.files import atomic_folder, is_free, write_tensors, write_text
from tmatch.runs.config import InitConfig, ModelConfig
from tmatch.runs.load import HUB, MODELS, LoadedModel

FRONT = "---\nlibrary_name: tmatch\n"
"""How our model cards begin."""


def export(model: LoadedModel, out: Path, dtype: torch.dtype = torch.float16, card: str | None = None) -> None:
    """Write a model to a new folder that `load_model` reads, with its weights in `dtype` and a model `card`.

    Without `card`, a model that was exported before keeps its own card, which may have been edited; others get a new
    one. Pretrained encoders that exist only on this machine are included; those on the hub are referenced by name. The
    folder is written completely or not at all.
    """
    if not is_free(out):
        raise ValueError(f"{out} is not empty; choose a new folder, so that nothing is overwritten.")
    card = card or _own_card(model.folder, out.name) or model_card(model, out.name)
    with atomic_folder(out) as draft:
        write_text(draft / "model.json", _anonymous(model).model_dump_json(indent=2) + "\n")
        if isinstance(model.config.encoders, ShardEncoders):
            _include_encoders(model, model.config.encoders, draft)
        elif (model.folder / AUTOENCODER).is_dir():
            _copy_autoencoder(model.folder / AUTOENCODER, draft / AUTOENCODER)
        weights = model.pipeline.trained().state_dict()
        write_tensors(draft / "model.safetensors", {key: x.to(dtype) for key, x in weights.items()})
        write_text(draft / "README.md", card)


def _own_card(folder: Path, name: str) -> str | None:
    """The card of a model that was exported before, under its new name."""
    file = folder / "README.md"
    card = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not card.startswith(FRONT):
        return None
    old = folder.name
    return card.replace(f"\n# {old}\n", f"\n# {name}\n").replace(f'pretrained("{old}")', f'pretrained("{name}")')


def _copy_autoencoder(source: Path, target: Path) -> None:
    """Copy the weights and the settings, without the paths that the latter name."""
    target.mkdir()
    shutil.copyfile(source / WEIGHTS, target / WEIGHTS)
    settings = json.loads((source / SETTINGS).read_text())
    if isinstance(settings.get("data"), dict) and "folder" in settings["data"]:
        settings["data"]["folder"] = "images"
    write_text(target / SETTINGS, json.dumps(settings, indent=2) + "\n")


def _anonymous(model: LoadedModel) -> ModelConfig:
    """The configuration without paths of this machine."""
    config, encoders = model.config, model.config.encoders
    run = config.run.model_copy(update={"init": InitConfig(), "data": config.run.data.anonymous()})
    if isinstance(encoders, ImageEncoders) and encoders.autoencoder not in (*SHIPPED, "none"):
        encoders = encoders.model_copy(update={"autoencoder": AUTOENCODER})
        run = run.model_copy(update={"autoencoder": AUTOENCODER})
    if isinstance(encoders, ShardEncoders):
        for part, field in ((AUTOENCODER, "autoencoder"), (TEXT_FOLDER, "text")):
            identity = getattr(encoders, field)
            if _is_local(identity, model.folder / part):
                encoders = encoders.model_copy(update={field: identity.model_copy(update={"name": part})})
    return config.model_copy(update={"run": run, "encoders": encoders})


def _include_encoders(model: LoadedModel, encoders: ShardEncoders, out: Path) -> None:
    """Copy pretrained encoders that exist only on this machine."""
    autoencoder, text = model.pipeline.codec.autoencoder, model.pipeline.encoder
    assert isinstance(autoencoder, PretrainedAutoencoder)
    assert isinstance(text, PretrainedText)
    if _is_local(encoders.autoencoder, model.folder / AUTOENCODER):
        autoencoder.network.save_pretrained(out / AUTOENCODER)
        drop_paths(out / AUTOENCODER / "config.json", type(autoencoder.network))
    if _is_local(encoders.text, model.folder / TEXT_FOLDER):
        text.network.save_pretrained(out / TEXT_FOLDER)
        text.tokenizer.save_pretrained(out / TEXT_FOLDER)


def drop_paths(file: Path, kind: type) -> None:
    """Keep only the arguments of the network in a diffusers configuration: it also writes where it was loaded from."""
    known, config = inspect.signature(kind).parameters, json.loads(file.read_text())
    kept = {key: x for key, x in config.items() if key in known or key in ("_class_name", "_diffusers_version")}
    write_text(file, json.dumps(kept, indent=2) + "\n")


def _is_local(encoder: Identity, included: Path) -> bool:
    name = Path(encoder.name)
    return included.is_dir() or name.exists() or name.with_name(f"{name.name}_encoder.safetensors").exists()


def model_card(model: LoadedModel, title: str) -> str:
    """A model card in the hub's format: what the model is, how it was trained, how good it is, how to use it."""
    return "\n".join(_card(model, title)) + "\n"


def _card(model: LoadedModel, title: str) -> Iterator[str]:
    config = _anonymous(model)
    train, sampling = config.run.train, config.run.sampling
    parameters = sum(p.numel() for p in model.pipeline.trained().parameters())
    yield from ("---", "library_name: tmatch", "pipeline_tag: text-to-image", "tags: [transition-matching]", "---", "")
    yield from (f"# {title}", "")
    yield f"An image generator trained by Transition Matching: the variant `{config.run.variant}` of tmatch, "
    yield f"{parameters / 1e6:,.1f}M parameters, states of {' x '.join(map(str, config.shape))}."
    yield from ("", "```python", "from tmatch.pipeline import Pipeline", "")
    yield f'pipe = Pipeline.from_pretrained("{title}")  # this folder, or its name on the hub'
    yield from ('pipe("a red circle").images[0].save("image.png")', "```", "")
    yield from _fine_tuned(model.config.run.init)
    yield f"Trained for up to {train.steps:,} steps of {train.batch_size:,} images at a learning rate of "
    yield f"{train.learning_rate:g}; the weights are averaged. Default sampling: {sampling.steps or 'its own'} "
    yield f"steps{_head_steps(model)} and guidance {sampling.guidance:g}."
    if isinstance(config.encoders, ShardEncoders):
        yield from ("", f"Autoencoder: `{config.encoders.autoencoder.name}`.")
        yield f"Text encoder: `{config.encoders.text.name}`."
    result = _result(model.folder)
    if "captions_satisfied" in result:
        (low, high), share = result["interval_95"], result["captions_satisfied"]
        yield from ("", f"Captions satisfied, of {result['prompts']:,} held-out ones: {share:.3f}")
        yield f"(95% interval {low:.3f} to {high:.3f})."
    yield from ("", "Training data, its licence, and intended use: fill in here.")


def _fine_tuned(init: InitConfig) -> Iterator[str]:
    """What the model was initialized from, by a public name."""
    if init.model is not None:
        public = init.model.startswith(HUB) or init.model in MODELS
        how = f" by LoRA of rank {init.lora}" if init.lora else " with a frozen backbone" if init.freeze else ""
        yield f"Fine-tuned from {f'`{init.model}`' if public else 'an unpublished model'}{how}."


def _head_steps(model: LoadedModel) -> str:
    head = model.pipeline.model.kernel.head
    return "" if head is None else f", {model.config.run.sampling.head_steps} head steps in each"


def _result(folder: Path) -> dict[str, Any]:
    """What the finished run measured, if it did."""
    try:
        found = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
