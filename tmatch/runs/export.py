"""A model as a folder of its own: its configuration, its weights, a card, and the encoders that nobody else has."""

import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tmatch.files import atomic_folder, is_free, write_tensors, write_text
from tmatch.data.manifest import Identity
from tmatch.codec.diffusers import PretrainedAutoencoder
from tmatch.conditioning.transformers import PretrainedText
from tmatch.runs.autoencoder import COMMITTED
from tmatch.runs.generator import About
from tmatch.runs.load import HUB, MODELS, LoadedModel
from tmatch.runs.settings import FolderData
from tmatch.runs.shards import AUTOENCODER, TEXT, AboutShards
from tmatch.runs.finetune import StartSettings

FRONT = "---\nlibrary_name: tmatch\n"
"""What a card of ours begins with."""


def export(opened: LoadedModel, out: Path, dtype: torch.dtype = torch.float16, card: str | None = None) -> None:
    """Write a model as a folder that `load_model` takes, its weights in `dtype`, with a `card`.

    Without one, a model that was exported before keeps its own, which may have been completed; others get a new one.
    Encoders of others that were opened from this machine go along; those that have a name on the hub are named. The
    folder is written whole or not at all.
    """
    if not is_free(out):
        raise ValueError(f"{out} is not empty; give a new folder, so that nothing in it is lost.")
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
    """The card of a model that was exported before, under its new name."""
    file = folder / "README.md"
    card = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not card.startswith(FRONT):
        return None
    before = folder.name
    return card.replace(f"\n# {before}\n", f"\n# {name}\n").replace(f'pretrained("{before}")', f'pretrained("{name}")')


def _impersonal(opened: LoadedModel) -> About | AboutShards:
    """What a model is, without the places of a machine that data and encoders were at."""
    about = opened.about
    start = about.recipe.init.model_copy(update={"model": None, "freeze": False, "lora": 0})
    if not isinstance(about, AboutShards):
        own, named = about.recipe, about.recipe.autoencoder in (*COMMITTED, "none")
        data = own.data.model_copy(update={"folder": Path("images")} if isinstance(own.data, FolderData) else {})
        general = {"init": start, "data": data, "autoencoder": own.autoencoder if named else AUTOENCODER}
        return about.model_copy(update={"recipe": own.model_copy(update=general)})
    changes = {"init": start, "shards": (Path("shards"),), "validation": None}
    encoders = {"autoencoder": about.autoencoder, "text": about.text}
    for part, (name, encoder) in zip((AUTOENCODER, TEXT), encoders.items(), strict=True):
        if _is_local(encoder, opened.folder / part):
            encoders[name] = encoder.model_copy(update={"name": part})
    return about.model_copy(update={"recipe": about.recipe.model_copy(update=changes), **encoders})


def _bundle(opened: LoadedModel, about: AboutShards, out: Path) -> None:
    """Copy encoders that are nowhere but here."""
    autoencoder, text = opened.pipeline.codec.autoencoder, opened.pipeline.encoder
    assert isinstance(autoencoder, PretrainedAutoencoder)
    assert isinstance(text, PretrainedText)
    if _is_local(about.autoencoder, opened.folder / AUTOENCODER):
        autoencoder.network.save_pretrained(out / AUTOENCODER)
        forget(out / AUTOENCODER / "config.json", type(autoencoder.network))
    if _is_local(about.text, opened.folder / TEXT):
        text.network.save_pretrained(out / TEXT)
        text.tokenizer.save_pretrained(out / TEXT)


def forget(file: Path, kind: type) -> None:
    """Leave out of a configuration where its network was, and what diffusers writes of it but does not read."""
    known, config = inspect.signature(kind).parameters, json.loads(file.read_text())
    kept = {key: x for key, x in config.items() if key in known or key in ("_class_name", "_diffusers_version")}
    write_text(file, json.dumps(kept, indent=2) + "\n")


def _is_local(encoder: Identity, bundled: Path) -> bool:
    name = Path(encoder.name)
    return bundled.is_dir() or name.exists() or name.with_name(f"{name.name}_encoder.safetensors").exists()


def model_card(opened: LoadedModel, title: str) -> str:
    """What a model is, how it was made, how good it is and how to use it, as the hub shows it."""
    return "\n".join(_card(opened, title)) + "\n"


def _card(opened: LoadedModel, title: str) -> Iterator[str]:
    about = _impersonal(opened)
    recipe = about.recipe
    parameters = sum(p.numel() for p in opened.pipeline.trained().parameters())
    yield from ("---", "library_name: tmatch", "pipeline_tag: text-to-image", "tags: [transition-matching]", "---", "")
    yield from (f"# {title}", "")
    yield f"A text-to-image generator trained by Transition Matching: the variant `{recipe.variant}` of tmatch, "
    yield f"{parameters / 1e6:,.1f}M parameters, states of {' x '.join(map(str, about.shape))}."
    yield from ("", "```python", "from tmatch.pipeline import Pipeline", "")
    yield f'pipe = Pipeline.from_pretrained("{title}")  # this folder, or its name on the hub'
    yield from ('pipe("what to draw").images[0].save("drawn.png")', "```", "")
    train, how = recipe.train, recipe.sampling
    yield from _fine_tuned(opened.about.recipe.init)
    yield f"Trained for up to {train.steps:,} steps of {train.batch_size:,} images at a learning rate of "
    yield f"{train.learning_rate:g}; averaged weights. Sampled by default with {how.steps or 'its own number of'} "
    yield f"steps{_head_steps(opened)}, and guidance {how.guidance:g}."
    if isinstance(about, AboutShards):
        yield from ("", f"Encoder of images: `{about.autoencoder.name}`. Of text: `{about.text.name}`.")
    result = _result(opened.folder)
    if "captions_satisfied" in result:
        (low, high), share = result["interval_95"], result["captions_satisfied"]
        yield from ("", f"Captions satisfied, of {result['prompts']:,} held-out ones: {share:.3f}")
        yield f"(95% interval {low:.3f} to {high:.3f})."
    yield from ("", "What it was trained on, under which licence, and what it should not be used for: to be said here.")


def _fine_tuned(start: StartSettings) -> Iterator[str]:
    """What it was before, by a name that others know, and how much of that may have changed."""
    if start.model is not None:
        known = start.model.startswith(HUB) or start.model in MODELS
        how = (
            f" by LoRA of rank {start.lora}"
            if start.lora
            else ", whose backbone stayed as it was"
            if start.freeze
            else ""
        )
        yield f"Fine-tuned from {f'`{start.model}`' if known else 'another model of its author'}{how}."


def _head_steps(opened: LoadedModel) -> str:
    """How many of the head, where there is one."""
    head = opened.pipeline.model.kernel.head
    return "" if head is None else f", {opened.about.recipe.sampling.head_steps} of the head in each"


def _result(folder: Path) -> dict[str, Any]:
    """What the finished run measured, if it did."""
    try:
        found = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
