"""Older formats: JSON keys and weight names of format 1, mapped to today's."""

from typing import Any

FORMAT = 2
"""Of model.json, record.json and manifest.json; format 1 is without a number."""

_WEIGHTS = (
    ("kernel.law.", "kernel.distribution."),
    ("kernel.flow.", "kernel.distribution."),
    ("encoder.places.", "encoder.positions."),
)


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
