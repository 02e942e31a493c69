"""`tmatch evaluate`."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from tmatch.app.sampling_options import DEFAULT_MODEL, SAMPLING_OPTIONS, SamplingOptions
from tmatch.app.tables import JsonFlag
from tmatch.datasets.base import Split
from tmatch.eval import METRICS
from tmatch.eval.evaluate import evaluate
from tmatch.runs import load_model
from tmatch.tensors import positive_int


def main(
    *,
    model: str = DEFAULT_MODEL,
    metrics: tuple[str, ...] = (),
    prompts: int = 1000,
    split: Split = "test",
    sampling: SamplingOptions = SAMPLING_OPTIONS,
    as_json: JsonFlag = False,
) -> None:
    """Generate images for the evaluation prompts of a model's data set and compute metrics on them.

    Args:
        model: a model of `tmatch models`, or the folder of a run.
        metrics: rows of METRICS, such as captions; by default those of the data set the model was trained on.
        prompts: number of held-out prompts.
        split: test prompts, validation prompts to tune settings on, or sentences withheld from training.
        sampling: where and how to sample; None uses the model's own setting.
    """
    positive_int("The number of prompts", prompts)
    loaded = load_model(model)
    pipeline, data = loaded.pipeline, loaded.config.run.data
    images = data.eval_prompts(prompts, split)
    if images is None:
        raise ValueError(f"The data set '{data.kind}' that {model} was trained on has no evaluation prompts.")
    if not (metrics or data.metrics):
        raise ValueError(
            f"The data set '{data.kind}' has no metric of its own; name one with --metrics ({', '.join(METRICS)}). "
            "CONTRIBUTING.md shows how to add a metric."
        )
    config = sampling.apply(pipeline, loaded.config.run.sampling)
    result = evaluate(
        pipeline, images.captions, data.eval_reference(split), metrics or data.metrics, config,
        progress=sys.stderr.isatty(), precision=sampling.precision,
    )  # fmt: skip
    if as_json:
        settings = {**config.model_dump(exclude_none=True), "precision": sampling.precision}
        print(json.dumps({"model": model, "split": split, **settings, **result}, indent=2))
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    table = Table("measure", "value")
    for name, value in result.items():
        for part, numbers in value.items() if isinstance(value, dict) else [("", value)]:
            numbers = numbers if isinstance(numbers, list) else [numbers]
            table.add_row(f"{name}: {part}".removesuffix(": ").replace("_", " "), " - ".join(map(_text, numbers)))
    Console().print(table)


def _text(number: Any) -> str:  # noqa: ANN401
    if not isinstance(number, float):
        return str(number)
    return f"{number:.3f}" if number == 0 or abs(number) >= 0.1 else f"{number:.3g}"
