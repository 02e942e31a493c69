"""Older formats: JSON keys and weight names of format 1, mapped to today's."""

from typing import Any

FORMAT = 2
"""Of model.json, record.json and manifest.json; format 1 is without a number."""

_WEIGHTS = (("kernel.law.", "kernel.distribution."), ("kernel.flow.", "kernel.distribution."))


def migrate_weight_name(name: str) -> str:
    """The name that a weight of an older model has today."""
    for old, new in _WEIGHTS:
        name = name.replace(old, new)
    return name


def migrate_settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of an older run, under today's keys."""
    head = dict(recipe.get("head", {}))
    for old, new in (("draws", "samples_per_token"), ("share", "token_fraction")):
        if old in head:
            head[new] = head.pop(old)
    return {**recipe, "head": head}


def migrate_encoders(settings: dict[str, Any]) -> dict[str, Any]:
    """The identities of both encoders, in the settings of shards or in a model.json, under today's keys."""
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
