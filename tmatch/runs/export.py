"""A model as a self-contained folder: configuration, weights, a model card, and encoders that exist only locally."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tmatch.codec.diffusers import PretrainedAutoencoder
from tmatch.codec.saved import NO_AUTOENCODERS, SETTINGS, SHIPPED, WEIGHTS, AutoencoderConfig
from tmatch.conditioning.transformers import PretrainedText
from tmatch.config import nonempty_path
from tmatch.data.manifest import Identity
from tmatch.datasets import ImageEncoders, ShardEncoders
from tmatch.datasets.images import AUTOENCODER
from tmatch.datasets.shards import TEXT_FOLDER
from tmatch.files import atomic_folder, is_free, write_tensors, write_text
from tmatch.generation.inputs import example
from tmatch.generation.presets import PRESETS
from tmatch.hub import ENCODER_DTYPES
from tmatch.reading import contained
from tmatch.runs.config import InitConfig, ModelConfig
from tmatch.runs.load import HUB, MODELS, LoadedModel

FRONT = "---\nlibrary_name: tmatch\n"
CARD = (
    FRONT
    + """pipeline_tag: {task}
tags: [transition-matching]
---

# {title}

An image generator trained by Transition Matching: the variant `{run.variant}` of tmatch, {parameters:,.1f}M parameters,
states of {shape}.

```python
from tmatch.pipeline import Pipeline

pipe = Pipeline.from_pretrained("{title}")  # this folder, or its name on the hub
pipe({given}).images[0].save("image.png")
```

Trained for {trained} steps of {run.train.batch_size:,} images at a learning rate of
{run.train.learning_rate:g}; the weights are averaged. Default sampling: {steps} and guidance {sampling.guidance:g}.
{more}
Training data, its licence, and intended use: fill in here.
"""
)


def export(model: LoadedModel, out: str | Path, dtype: torch.dtype = torch.float16) -> None:
    """Write a model to a new folder that `load_model` reads, with its weights in `dtype` and a model card.

    A model that was exported before keeps its own card, which may have been edited. Pretrained encoders are
    included if they exist only on this machine. The folder is written completely or not at all.
    """
    out = nonempty_path(out)
    if dtype not in ENCODER_DTYPES.values():
        raise ValueError(f"dtype is one of {', '.join(map(str, ENCODER_DTYPES.values()))}; got {dtype!r}.")
    if not is_free(out):
        raise ValueError(f"{out} is not empty; choose a new folder, so that nothing is overwritten.")
    card = _own_card(model.folder, out.name) or model_card(model, out.name)
    config = _anonymous(model)
    with atomic_folder(out) as draft:
        write_text(draft / "model.json", config.model_dump_json(indent=2) + "\n")
        if model.presets is not None:
            write_text(draft / PRESETS, model.presets.model_dump_json(indent=2) + "\n")
        if isinstance(model.config.encoders, ShardEncoders):
            _include_encoders(model, model.config.encoders, draft)
        elif config.run.autoencoder == AUTOENCODER:
            _write_autoencoder(model, draft / AUTOENCODER)
        weights = model.pipeline.trained().state_dict()
        write_tensors(draft / "model.safetensors", {key: x.to(dtype) for key, x in weights.items()})
        write_text(draft / "README.md", card)


def _own_card(folder: Path, name: str) -> str | None:
    """The card of a model that was exported before, under its new name."""
    file = contained(folder / "README.md")
    card = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not card.startswith(FRONT):
        return None
    old = folder.name
    return card.replace(f"\n# {old}\n", f"\n# {name}\n").replace(f'pretrained("{old}")', f'pretrained("{name}")')


def _write_autoencoder(model: LoadedModel, target: Path) -> None:
    """Write the loaded weights and the architecture: what else is in the folder may be a link, or name paths."""
    autoencoder = model.pipeline.codec.autoencoder
    assert isinstance(autoencoder, nn.Module)
    target.mkdir()
    write_tensors(target / WEIGHTS, autoencoder.state_dict())
    settings = json.loads((model.folder / AUTOENCODER / SETTINGS).read_text())
    kept = {key: settings[key] for key in AutoencoderConfig.model_fields}
    write_text(target / SETTINGS, json.dumps(kept, indent=2) + "\n")


def _anonymous(model: LoadedModel) -> ModelConfig:
    """The configuration without paths of this machine."""
    config, encoders = model.config, model.config.encoders
    backbone = config.run.backbone.model_copy(update={"model": None})  # whose configuration is in `architecture`
    changes = {"init": InitConfig(), "data": config.run.data.anonymous(), "backbone": backbone}
    run = config.run.model_copy(update=changes)
    if isinstance(encoders, ImageEncoders) and encoders.autoencoder not in (*SHIPPED, *NO_AUTOENCODERS):
        encoders = encoders.model_copy(update={"autoencoder": AUTOENCODER})
        run = run.model_copy(update={"autoencoder": AUTOENCODER})
    if isinstance(encoders, ShardEncoders):
        for part, field in ((AUTOENCODER, "autoencoder"), (TEXT_FOLDER, "text")):
            identity = getattr(encoders, field)
            if identity is not None and _is_local(identity, model.folder / part):
                encoders = encoders.model_copy(update={field: identity.model_copy(update={"name": part})})
    return config.model_copy(update={"run": run, "encoders": encoders})


def _include_encoders(model: LoadedModel, encoders: ShardEncoders, out: Path) -> None:
    """Copy pretrained encoders that exist only on this machine."""
    autoencoder, text = model.pipeline.codec.autoencoder, model.pipeline.encoder
    assert isinstance(autoencoder, PretrainedAutoencoder)
    if _is_local(encoders.autoencoder, model.folder / AUTOENCODER):
        autoencoder.network.save_pretrained(out / AUTOENCODER)
        drop_paths(out / AUTOENCODER)
    if encoders.text is not None and _is_local(encoders.text, model.folder / TEXT_FOLDER):
        assert isinstance(text, PretrainedText)
        text.network.save_pretrained(out / TEXT_FOLDER)
        text.tokenizer.save_pretrained(out / TEXT_FOLDER)
        drop_paths(out / TEXT_FOLDER)


def drop_paths(folder: Path) -> None:
    """Remove absolute paths from the configurations that other libraries write, such as where they loaded a network."""

    def without(entries: dict[str, Any]) -> dict[str, Any]:
        return {key: x for key, x in entries.items() if not re.search(r"""['"]/[^/]+/""", repr(x))}

    for file in folder.glob("*config.json"):
        write_text(file, json.dumps(json.loads(file.read_text(), object_hook=without), indent=2) + "\n")


def _is_local(encoder: Identity, included: Path) -> bool:
    name = Path(encoder.name)
    return included.is_dir() or name.exists() or name.with_name(f"{name.name}_encoder.safetensors").exists()


def model_card(model: LoadedModel, title: str) -> str:
    """A model card in the hub's format: what the model is, how it was trained, how good it is, how to use it."""
    config = _anonymous(model)
    parameters = sum(p.numel() for p in model.pipeline.trained().parameters())
    sampling = model.sampling()
    steps = f"{sampling.steps or 'its own'} steps"
    if model.pipeline.model.kernel.head is not None:
        first, last = sampling.head_steps, sampling.last_head_steps
        steps += f", {first if last is None else f'{first} to {last}'} head steps in each"
    more, init, result = "", model.config.run.init, contained(model.folder / "result.json")
    if init.model is not None:
        public = f"`{init.model}`" if init.model.startswith(HUB) or init.model in MODELS else "an unpublished model"
        how = f" by LoRA of rank {init.lora}" if init.lora else " with a frozen backbone" if init.freeze else ""
        more += f"\nFine-tuned from {public}{how}.\n"
    if isinstance(config.encoders, ShardEncoders):
        text = config.encoders.text
        more += f"\nAutoencoder: `{config.encoders.autoencoder.name}`."
        more += "\n" if text is None else f" Text encoder: `{text.name}`.\n"
    try:
        if result.is_file() and "captions_satisfied" in (found := json.loads(result.read_text())):
            (low, high), share = found["interval_95"], found["captions_satisfied"]
            more += f"\nCaptions satisfied, of {found['prompts']:,} held-out ones: {share:.3f}"
            more += f" (95% interval {low:.3f} to {high:.3f})"
            more += ".\n" if model.presets is None else ", with the settings of its training run.\n"
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"{result} is damaged ({error}); remove it to export without a result.") from error
    shape, (_, given) = " x ".join(map(str, config.shape)), example(model.pipeline.encoder)
    task = "text-to-image" if given.startswith('"') else "unconditional-image-generation"
    trained = f"{config.run.train.steps:,}" if model.step is None else f"{model.step:,} of {config.run.train.steps:,}"
    card = {
        "trained": trained,
        "run": config.run,
        "parameters": parameters / 1e6,
        "shape": shape,
        "steps": steps,
        "sampling": sampling,
    }
    return CARD.format(title=title, more=more, task=task, given=given, **card)
