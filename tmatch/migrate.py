"""Older models, runs and data shards: their JSON keys and weight names, under today's names."""

from typing import Any

FORMAT = 2
"""Version of model.json, record.json and manifest.json; files of format 1 have no such field."""

_WEIGHTS = (
    ("kernel.law.", "kernel.distribution."),
    ("kernel.flow.", "kernel.distribution."),
    ("encoder.places.", "encoder.positions."),
)
_KEYS: dict[str, dict[str, str]] = {
    "": {"start": "init", "drop": "caption_dropout", "held_out": "eval_prompts"},
    "train": {
        "batch": "batch_size", "accumulate": "gradient_accumulation_steps", "clip": "max_grad_norm", "ema": "ema_decay",
    },
    "head": {"draws": "samples_per_token", "share": "token_fraction"},
    "text": {"longest": "max_length"},
    "sampling": {"schedule": "guidance_schedule"},
}  # fmt: skip
"""Old key -> new key, in each section of the settings of a run; those of sampling changed within format 2."""
_SAMPLERS = {"fm-restart": ("fm", "restart", 1000), "ddim": ("ddpm", "ddim", None)}
"""Variants that have become samplers: the variant they share weights with, the sampler, and their steps."""


def migrate_weight_name(name: str) -> str:
    """Today's name of a weight."""
    for old, new in _WEIGHTS:
        name = name.replace(old, new)
    return name


def migrate_settings(old: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run of format 1, under today's keys."""
    new = {key: _renamed(key, value) if isinstance(value, dict) else value for key, value in old.items()}
    if isinstance(new.get("train"), dict) and "parallel" in new["train"]:
        parallel = new["train"]["parallel"]
        new["train"]["parallel"] = {"replicate": "ddp", "shard": "fsdp"}.get(parallel, parallel)
    if "data" in new:
        new["data"] = {"kind": "folder" if "folder" in new["data"] else "shapes", **new["data"]}
    if "variant" not in new:  # an autoencoder, or the settings of a bare `Trainer`
        return _renamed("train", new) if "steps" in new else new
    new = _renamed("", new)
    if "shards" in new:
        folders = new.pop("shards")
        new["data"] = {"kind": "shards", "folders": [folders] if isinstance(folders, str) else folders}
        new["data"] |= {key: new.pop(key) for key in ("validation", "window", "workers") if key in new}
    if new["variant"] in _SAMPLERS:
        new["variant"], sampler, steps = _SAMPLERS[new["variant"]]
        new["sampling"] = {**new["sampling"], "sampler": sampler, "steps": new["sampling"].get("steps") or steps}
    return new


def migrate_sampling(run: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run of any format, with today's keys of sampling."""
    sampling = run.get("sampling")
    return {**run, "sampling": _renamed("sampling", sampling)} if isinstance(sampling, dict) else run


def migrate_model(old: dict[str, Any]) -> dict[str, Any]:
    """model.json under today's keys, as format 2."""
    if isinstance(version := old.get("format"), int) and version > FORMAT:
        raise ValueError(f"its format is {version}, and this version of tmatch reads up to {FORMAT}: upgrade tmatch")
    if "format" in old:
        return {**old, "run": migrate_sampling(old["run"])}
    recipe = migrate_settings(old["recipe"])
    if recipe["data"]["kind"] == "shards":
        encoders = {"kind": "shards", **migrate_encoders({key: old[key] for key in ("autoencoder", "text")})}
    else:
        conditioning = {"kind": "words", "vocabulary": old["vocabulary"], **recipe["text"]}
        encoders = {
            "kind": "images", "conditioning": conditioning, "autoencoder": recipe["autoencoder"],
            "digest": old.get("autoencoder"),
        }  # fmt: skip
    return {"format": FORMAT, "run": recipe, "shape": old["shape"], "grids": old.get("grids", []), "encoders": encoders}


def migrate_encoders(settings: dict[str, Any]) -> dict[str, Any]:
    """The identities of pretrained encoders in some settings, under today's keys."""
    renamed = {"autoencoder": {"codes": "codebook_size"}, "text": {"longest": "max_length"}}
    parts = {part: settings[part] for part in renamed if isinstance(settings.get(part), dict)}
    new = {part: {renamed[part].get(key, key): value for key, value in own.items()} for part, own in parts.items()}
    return {**settings, **new}


def migrate_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a folder of data shards, under today's keys."""
    if "format" in manifest:
        return manifest
    rest = {key: value for key, value in manifest.items() if key != "version"}
    settings = migrate_encoders(manifest["settings"])
    settings["batch_size"] = settings.pop("batch")
    return {"format": FORMAT, **rest, "settings": settings}


def _renamed(section: str, settings: dict[str, Any]) -> dict[str, Any]:
    keys = _KEYS.get(section, {})
    return {keys.get(key, key): value for key, value in settings.items()}
