"""`tmatch evaluate`."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

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
from tmatch.datasets.base import Split
from tmatch.eval import METRICS
from tmatch.eval.evaluate import evaluate
from tmatch.runs import load_model
from tmatch.tensors import positive_int


def main(arguments: Sequence[str]) -> None:
    """Parse and run."""
    call("evaluate", _evaluate, arguments)


def _evaluate(
    *,
    model: str = DEFAULT_MODEL,
    metrics: tuple[str, ...] = (),
    prompts: int = 1000,
    split: Split = "test",
    sampling: SamplingOptions = SAMPLING_OPTIONS,
    compute: FlatComputeOptions = ComputeOptions(),
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Generate images for the evaluation prompts of a model's data set and compute metrics on them.

    Args:
        model: a model of `tmatch models`, or the folder of a run.
        metrics: names of metrics; by default those of the data set the model was trained on.
        prompts: number of prompts; neither they nor the noise were used in training.
        split: test prompts, validation prompts to tune settings on, or sentences withheld from training.
        sampling: how to sample; None uses the model's own setting.
        compute: where and how the networks run.
        json_output: print JSON instead of a table.
    """
    positive_int("The number of prompts", prompts)
    loaded = load_model(model)
    pipeline, data = loaded.pipeline, loaded.config.run.data
    images = data.eval_prompts(prompts, split)
    if images is None:
        raise ValueError(f"The data set '{data.kind}' that {model} was trained on has no evaluation prompts.")
    if not (metrics or data.metrics):
        raise ValueError(f"Name a metric: --metrics {' '.join(METRICS)}.")
    config = sampling_config(sampling, pipeline, loaded.config.run.sampling)
    result = evaluate(
        compute.prepare(pipeline), images.captions, images, metrics or data.metrics, config,
        progress=sys.stderr.isatty(), precision=compute.precision,
    )  # fmt: skip
    if json_output:
        settings = {**config.model_dump(exclude_none=True), "precision": compute.precision}
        print(json.dumps({"model": model, "split": split, **settings, **result}, indent=2))
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    table = Table("measure", "value")
    for name, value in result.items():
        for part, numbers in value.items() if isinstance(value, dict) else [("", value)]:
            numbers = numbers if isinstance(numbers, list) else [numbers]
            text = " - ".join(f"{x:.3f}" if isinstance(x, float) else str(x) for x in numbers)
            table.add_row(f"{name}: {part}".removesuffix(": ").replace("_", " "), text)
    Console().print(table)
