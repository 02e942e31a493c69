"""Exporting a model as a folder: configuration, weights, a model card, and encoders that are not on the hub."""

import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tmatch.codec.diffusers import PretrainedAutoencoder
from tmatch.conditioning.transformers import PretrainedText
from tmatch.data.manifest import Identity
from tmatch.files import atomic_folder, is_free, write_tensors, write_text
from tmatch.runs.autoencoder import COMMITTED
from tmatch.runs.finetune import StartSettings
from tmatch.runs.generator import About
from tmatch.runs.load import HUB, MODELS, LoadedModel
from tmatch.runs.settings import FolderData
from tmatch.runs.shards import AUTOENCODER, TEXT, AboutShards

FRONT = "---\nlibrary_name: tmatch\n"
"""The first lines of our model cards."""


def export(opened: LoadedModel, out: Path, dtype: torch.dtype = torch.float16, card: str | None = None) -> None:
    """Write a model to a folder that `load_model` reads, with weights in `dtype` and a model card.

    Without a `card`, an exported model keeps its own, which may have been edited. Pretrained encoders from local
    folders are copied; those on the hub are referred to by name. The folder is written atomically.
    """
    if not is_free(out):
        raise ValueError(f"{out} is not empty; choose a new folder.")
    card = card or _own_card(opened.folder, out.name) or model_card(opened, out.name)
    with atomic_folder(out) as draft:
        write_text(draft / "model.json", _impersonal(opened).model_dump_json(indent=2) + "\n")
        if (opened.folder / AUTOENCODER).is_dir():
            shutil.copytree(opened.folder / AUTOENCODER, draft / AUTOENCODER)
        if isinstance(opened.about, AboutShards):
            _bundle(opened, opened.about, draft)
        weights = opened.pipeline.trained().state_dict()
        write_tensors(draft / "model.safetensors", {key: x.to(dtype) for key, x in weights.items()})
        write_text(draft / "README.md", card)


def _own_card(folder: Path, name: str) -> str | None:
    """The card of an exported model, under its new name."""
    file = folder / "README.md"
    card = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not card.startswith(FRONT):
        return None
    before = folder.name
    return card.replace(f"\n# {before}\n", f"\n# {name}\n").replace(f'pretrained("{before}")', f'pretrained("{name}")')


def _impersonal(opened: LoadedModel) -> About | AboutShards:
    """The configuration of a model without local paths."""
    about = opened.about
    start = about.recipe.start.model_copy(update={"model": None, "freeze": False, "lora": 0})
    if not isinstance(about, AboutShards):
        own, named = about.recipe, about.recipe.autoencoder in (*COMMITTED, "none")
        data = own.data.model_copy(update={"folder": Path("images")} if isinstance(own.data, FolderData) else {})
        general = {"start": start, "data": data, "autoencoder": own.autoencoder if named else AUTOENCODER}
        return about.model_copy(update={"recipe": own.model_copy(update=general)})
    changes = {"start": start, "shards": (Path("shards"),), "validation": None}
    encoders = {"autoencoder": about.autoencoder, "text": about.text}
    for part, (name, encoder) in zip((AUTOENCODER, TEXT), encoders.items(), strict=True):
        if _is_local(encoder, opened.folder / part):
            encoders[name] = encoder.model_copy(update={"name": part})
    return about.model_copy(update={"recipe": about.recipe.model_copy(update=changes), **encoders})


def _bundle(opened: LoadedModel, about: AboutShards, out: Path) -> None:
    """Copy encoders that are not on the hub."""
    autoencoder, text = opened.pipeline.codec.autoencoder, opened.pipeline.encoder
    assert isinstance(autoencoder, PretrainedAutoencoder)
    assert isinstance(text, PretrainedText)
    if _is_local(about.autoencoder, opened.folder / AUTOENCODER):
        autoencoder.network.save_pretrained(out / AUTOENCODER)
        remove_unknown_keys(out / AUTOENCODER / "config.json", type(autoencoder.network))
    if _is_local(about.text, opened.folder / TEXT):
        text.network.save_pretrained(out / TEXT)
        text.tokenizer.save_pretrained(out / TEXT)


def remove_unknown_keys(file: Path, kind: type) -> None:
    """Remove local paths from a configuration, and keys that diffusers writes but does not read."""
    known, config = inspect.signature(kind).parameters, json.loads(file.read_text())
    kept = {key: x for key, x in config.items() if key in known or key in ("_class_name", "_diffusers_version")}
    write_text(file, json.dumps(kept, indent=2) + "\n")


def _is_local(encoder: Identity, bundled: Path) -> bool:
    name = Path(encoder.name)
    return bundled.is_dir() or name.exists() or name.with_name(f"{name.name}_encoder.safetensors").exists()


def model_card(opened: LoadedModel, title: str) -> str:
    """The model card: what the model is, how it was trained, its results, and how to use it."""
    return "\n".join(_card(opened, title)) + "\n"


def _card(opened: LoadedModel, title: str) -> Iterator[str]:
    about = _impersonal(opened)
    recipe = about.recipe
    parameters = sum(p.numel() for p in opened.pipeline.trained().parameters())
    yield from ("---", "library_name: tmatch", "pipeline_tag: text-to-image", "tags: [transition-matching]", "---", "")
    yield from (f"# {title}", "")
    yield f"A text-to-image generator trained with Transition Matching: variant `{recipe.variant}` of tmatch, "
    yield f"{parameters / 1e6:,.1f}M parameters, states of {' x '.join(map(str, about.shape))}."
    yield from ("", "```python", "from tmatch.pipeline import Pipeline", "")
    yield f'pipe = Pipeline.from_pretrained("{title}")  # this folder, or its name on the hub'
    yield from ('pipe("your prompt").images[0].save("image.png")', "```", "")
    train, how = recipe.train, recipe.sampling
    yield from _fine_tuned(opened.about.recipe.start)
    yield f"Trained for up to {train.steps:,} steps with batches of {train.batch:,} images and a learning rate of "
    yield f"{train.learning_rate:g}; the weights are an exponential moving average. Default sampling: "
    yield f"{how.steps or 'all'} steps{_head_steps(opened)}, guidance {how.guidance:g}."
    if isinstance(about, AboutShards):
        yield from ("", f"Autoencoder: `{about.autoencoder.name}`. Text encoder: `{about.text.name}`.")
    result = _result(opened.folder)
    if "captions_satisfied" in result:
        (low, high), share = result["interval_95"], result["captions_satisfied"]
        yield from ("", f"Captions satisfied, out of {result['prompts']:,} held-out prompts: {share:.3f}")
        yield f"(95% interval {low:.3f} to {high:.3f})."
    yield from ("", "To complete: training data, license, intended use and limitations.")


def _fine_tuned(start: StartSettings) -> Iterator[str]:
    """The model that this one was fine-tuned from, if its name is public, and how."""
    if start.model is not None:
        known = start.model.startswith(HUB) or start.model in MODELS
        how = f" with LoRA of rank {start.lora}" if start.lora else " with a frozen backbone" if start.freeze else ""
        yield f"Fine-tuned from {f'`{start.model}`' if known else 'another model'}{how}."


def _head_steps(opened: LoadedModel) -> str:
    """The solver steps of the head, if there is one."""
    head = opened.pipeline.model.kernel.head
    return "" if head is None else f" with {opened.about.recipe.sampling.head_steps} head steps each"


def _result(folder: Path) -> dict[str, Any]:
    """The result of the finished run, if it was evaluated."""
    try:
        found = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
