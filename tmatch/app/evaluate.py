"""`tmatch evaluate`."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tmatch.app.parse import call
from tmatch.app.sampling_options import (
    DEFAULT_MODEL,
    SAMPLING_OPTIONS,
    ComputeOptions,
    FlatComputeOptions,
    SamplingOptions,
    sampling_config,
)
from tmatch.eval.captions import Satisfied, captions_satisfied, interval
from tmatch.runs.load import load_model
from tmatch.runs.settings import Split
from tmatch.tensors import positive_int


def main(arguments: Sequence[str]) -> None:
    """Parse and run."""
    call("evaluate", _evaluate, arguments)


def _evaluate(
    *,
    model: str = DEFAULT_MODEL,
    prompts: int = 1000,
    split: Split = "test",
    sampling: SamplingOptions = SAMPLING_OPTIONS,
    compute: FlatComputeOptions = ComputeOptions(),
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Measure how many captions of `shapes` a model satisfies, with the exact checker.

    Args:
        model: a model of `tmatch models`, or the folder of a run.
        prompts: number of captions; neither they nor the noise were used in training.
        split: test captions, validation captions to tune settings on, or sentences withheld from training.
        sampling: how to sample; None uses the model's own setting.
        compute: where and how the networks run.
        json_output: print JSON instead of a table.
    """
    positive_int("The number of prompts", prompts)
    pipeline, recipe = load_model(model)
    images = recipe.eval_prompts(prompts, split)
    if images is None:
        raise ValueError(f"{model} was not trained on `shapes`, and the checker reads only images of `shapes`.")
    config = sampling_config(sampling, pipeline, recipe.sampling)
    measured = captions_satisfied(
        compute.prepare(pipeline), images, **config.arguments(), progress=sys.stderr.isatty(),
        precision=compute.precision,
    )  # fmt: skip
    if json_output:
        settings = {**config.model_dump(exclude_none=True), "precision": compute.precision}
        print(json.dumps({"model": model, "split": split, **settings, **measured.record()}, indent=2))
    else:
        _print(measured)


def _print(measured: Satisfied) -> None:
    table = Table("skill", "satisfied", "95% interval")
    for skill, share in measured.skills.items():
        count = measured.skill.count(skill)
        low, high = interval(round(share * count), count)
        table.add_row(skill, f"{share:.3f}", f"{low:.3f} - {high:.3f}")
    table.add_section()
    total = f"all, {len(measured.verdicts)} prompts"
    table.add_row(total, f"{measured.share:.3f}", "{:.3f} - {:.3f}".format(*measured.interval))
    Console().print(table)
    calls = measured.evaluations
    print(f"{calls.backbone} backbone and {calls.head} head evaluations per image, {measured.seconds:.1f} s in total")
