"""Migration of format 1 (files without a format number): JSON keys and weight names."""

from typing import Any

FORMAT = 2
"""Format number of model.json, record.json and manifest.json."""

_WEIGHTS = (("kernel.law.", "kernel.distribution."), ("kernel.flow.", "kernel.distribution."))

SETTINGS: dict[str, dict[str, str]] = {
    "": {"drop": "caption_dropout", "start": "init"},
    "train": {
        "batch": "batch_size",
        "accumulate": "gradient_accumulation_steps",
        "clip": "max_grad_norm",
        "ema": "ema_decay",
    },
    "head": {"draws": "samples_per_token", "share": "token_fraction"},
    "text": {"longest": "max_length"},
}
"""Renamed keys of a run's settings, by section; "" is the top level."""

VALUES: dict[str, dict[Any, Any]] = {"parallel": {"replicate": "ddp", "shard": "fsdp"}}
"""Renamed values, by key."""


def migrate_weight_name(name: str) -> str:
    """Return the current name of a weight of format 1."""
    for old, new in _WEIGHTS:
        name = name.replace(old, new)
    return name


def migrate_settings(settings: dict[str, Any], section: str = "") -> dict[str, Any]:
    """Return the settings of a run of format 1 under their current keys; current settings stay as they are."""
    if not section and "learning_rate" in settings:  # of a TrainConfig by itself
        section = "train"
    migrated: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            value = migrate_settings(value, key)
        elif isinstance(value, str):
            value = VALUES.get(key, {}).get(value, value)
        migrated[SETTINGS.get(section, {}).get(key, key)] = value
    return migrated
