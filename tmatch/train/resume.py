"""Whether a run with given settings may resume from the checkpoints in a folder."""

from pathlib import Path
from typing import Any

from tmatch.config import MAX_STEPS, Config, default_settings, free_keys
from tmatch.train import checkpoint
from tmatch.train.config import TrainConfig

CONTENTS = "data contents"
"""Key of the digest of the data among the settings of a run."""


def require_resumable(out: Path, config: Config) -> None:
    """Raise if a run with this configuration can neither start nor resume in a folder."""
    checkpoint.require_free(out)
    newest = checkpoint.latest(out)
    if newest is not None:
        require_same_run(newest, config)


def require_same_run(newest: Path, config: Config, contents: str = "") -> int:
    """Return the step of a checkpoint; raise if it belongs to a run with other settings or other data.

    A setting that only one side has counts as its default on the other.
    """
    record, out, train = checkpoint.record(newest), newest.parent, getattr(config, "train", config)
    assert isinstance(train, TrainConfig), "the configuration of a run has a field `train`"
    step, saved = record["step"], record.get("settings")
    if not isinstance(saved, dict) or not saved:
        raise ValueError(f"The newest checkpoint of {out} does not contain its settings; remove its folder.")
    defaults = _flat(default_settings(config))
    free = free_keys(config)
    prefix = "" if train is config else "train."
    with checkpoint.reading(newest / "record.json"):
        then, now = (defaults | _flat(settings) for settings in (saved, config.model_dump(mode="json")))
        steps_then, last = then[f"{prefix}steps"], max(0, step - 1)
        if not isinstance(steps_then, int) or not 0 < steps_then <= MAX_STEPS:
            raise ValueError(f"its number of steps is {steps_then!r:.40}")
        if train.learning_rate_at(last, steps_then) == train.learning_rate_at(last):
            free.add(f"{prefix}steps")  # the steps taken so far, before any decay, do not depend on the number of steps
    digest = then.pop(CONTENTS, contents)
    changed = [key for key in sorted({*then, *now}) if then.get(key, ...) != now.get(key, ...)]
    changed = [key for key in changed if not any(f"{key}.".startswith(f"{name}.") for name in free)]
    if changed == [f"{prefix}steps"]:
        raise ValueError(
            f"{out} contains a run with {changed[0]} {steps_then}, whose learning rate has started to decay; it cannot "
            f"change to {train.steps} steps. Choose a new folder or the old settings."
        )
    if changed:
        raise ValueError(f"{out} is a run with another {' and '.join(changed)}; choose a new folder or old settings.")
    if contents and digest != contents:
        raise ValueError(f"{out} contains a run on other data; choose a new folder or the old data.")
    if step > train.steps:
        raise ValueError(f"{out} contains a run of {step} steps; set train.steps to at least as many.")
    return int(step)


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
