"""Whether the run in a folder is the one that is asked for."""

from pathlib import Path
from typing import Any

from tmatch.train import checkpoint
from tmatch.train.config import TrainConfig

CONTENTS = "data contents"
"""The entry of a digest of the data among the settings of a run."""


def require_resumable(out: Path, config: TrainConfig, settings: dict[str, Any]) -> None:
    """Refuse a folder in which a run of these settings can neither begin nor go on."""
    checkpoint.require_free(out)
    newest = checkpoint.latest(out)
    if newest is not None:
        require_same_run(newest, config, settings)


def require_same_run(newest: Path, config: TrainConfig, settings: dict[str, Any]) -> int:
    """The step of a checkpoint; refused where the run that it is of is another one."""
    record, out = checkpoint.record(newest, ("settings",)), newest.parent
    step, saved = record["step"], record["settings"]
    then, now = _flat(saved if isinstance(saved, dict) else {}), _flat(settings)
    if not then:
        raise ValueError(f"The newest checkpoint of {out} does not say what run it is of; remove its folder.")
    free = {*config.FREE}
    steps_then = then.get("train.steps", then.get("steps"))
    if all(config.rate(k, steps_then) == config.rate(k) for k in range(step)):
        free.add("steps")  # the run may become longer or shorter while the steps it took stay the same
    bound = [key for key in now if not free & {key.removeprefix("train."), key.partition(".")[0]}]
    changed = [key for key in bound if then.get(key, now[key]) != now[key]]
    if changed in (["steps"], ["train.steps"]):
        raise ValueError(
            f"{out} holds a run with another {changed[0]}, {steps_then}, and its learning rate has begun to fall, so "
            f"it cannot become a run of {config.steps} steps; give a new folder, or the old settings."
        )
    if changed == [CONTENTS]:
        raise ValueError(
            f"{out} holds a run on another data set, or one that was encoded by another; give a new folder, or the old "
            "data."
        )
    if changed:  # other settings may be why the data is another
        named = " and ".join(key for key in changed if key != CONTENTS)
        raise ValueError(f"{out} holds a run with another {named}; give a new folder, or the old settings.")
    if step > config.steps:
        raise ValueError(f"{out} has taken {step} steps already; ask for as many, or more.")
    return int(step)


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
