"""Generating images for prompts and computing metrics on them."""

from collections.abc import Sequence
from typing import Any

from tmatch.config import lookup
from tmatch.data import CaptionedImages
from tmatch.eval import METRICS
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig
from tmatch.tensors import Precision


def evaluate(
    pipeline: TextToImage,
    prompts: Sequence[str],
    reference: CaptionedImages | None = None,
    metrics: Sequence[str] = ("captions",),
    sampling: SamplingConfig = SamplingConfig(),
    *,
    batch_size: int = 250,
    progress: bool = False,
    precision: Precision = "float32",
) -> dict[str, Any]:
    """Generate one image per prompt with seeds 0, 1, 2, ... and compute each named metric, as a JSON-able dictionary.

    `reference` is a set of real images, for metrics that use one. The scores come first, in the order of `metrics`.
    """
    chosen = [lookup("metric", METRICS, name) for name in metrics]
    options: dict[str, Any] = {"batch_size": batch_size, "progress": progress, "precision": precision}
    generated = pipeline.generate(prompts, range(len(prompts)), sampling, **options)
    measured = {
        "prompts": len(prompts),
        "backbone_evaluations": generated.evaluations.backbone,
        "head_evaluations": generated.evaluations.head,
        "seconds": round(generated.seconds, 2),
    }
    result: dict[str, Any] = {}
    for compute in chosen:
        scores = compute(generated.images, prompts, reference, pipeline.codec)
        if twice := sorted((result | measured).keys() & scores.keys()):
            raise ValueError(f"The key '{twice[0]}' of a metric is already in the result; rename it.")
        result |= scores
    return result | measured
