"""`tmatch evaluate`."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tmatch.app.sampling_options import DEFAULT_MODEL, SAMPLING_OPTIONS, SamplingOptions
from tmatch.app.tables import JsonFlag
from tmatch.data import CaptionedImages
from tmatch.datasets.base import DataConfig, Split
from tmatch.eval import DEFAULT_METRICS
from tmatch.eval.evaluate import evaluate
from tmatch.runs import LoadedModel, load_model
from tmatch.tensors import positive_int


def main(
    *,
    model: str = DEFAULT_MODEL,
    metrics: tuple[str, ...] = (),
    prompts: int = 1000,
    split: Split = "test",
    data: Path | None = None,
    sampling: SamplingOptions = SAMPLING_OPTIONS,
    as_json: JsonFlag = False,
) -> None:
    """Generate images for the evaluation prompts (captions or classes) of a model's data set, and compute metrics.

    Args:
        model: a model of `tmatch models`, or the folder of a run.
        metrics: rows of METRICS, such as captions; by default those of the data set the model was trained on, or
            energy if it has none.
        prompts: number of held-out prompts.
        split: test prompts, validation prompts to tune settings on, or sentences withheld from training.
        data: folder of the images a model was trained on, if it has moved or the model is an export.
        sampling: where and how to sample; None uses the model's own setting.
    """
    positive_int("The number of prompts", prompts)
    loaded = load_model(model)
    source = loaded.config.run.data.at(data)
    images, metrics = evaluation_set(loaded, source, metrics, prompts, split)
    config = sampling.apply(loaded)
    result = evaluate(
        loaded.pipeline, images.captions, source.eval_reference(split), metrics, config,
        progress=sys.stderr.isatty(), precision=sampling.precision,
    )  # fmt: skip
    if as_json:
        settings = {**config.model_dump(exclude_none=True), "precision": sampling.precision}
        print(json.dumps({"model": model, "split": split, **settings, **result}, indent=2))
    else:
        _print(result)


def evaluation_set(
    model: LoadedModel, data: DataConfig, metrics: tuple[str, ...], prompts: int, split: Split
) -> tuple[CaptionedImages, tuple[str, ...]]:
    """The images whose prompts a model is evaluated on, and the metrics, by default those of its data set or energy."""
    images = data.eval_prompts(prompts, split)
    if images is None or len(images) == 0:
        raise ValueError(f"The data set '{data.kind}' that {model.folder} was trained on has no {split} prompts.")
    classes = getattr(model.pipeline.encoder, "classes", None)
    if images.classes is not None and classes is not None and tuple(images.classes) != tuple(classes):
        raise ValueError(
            f"The images have other classes than the model, whose first is '{classes[0]}': pass the folder of its "
            "training images (--data)."
        )
    return images, metrics or data.metrics or DEFAULT_METRICS


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
