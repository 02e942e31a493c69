"""Evaluation: a metric is a function (`eval/metric.py`) in a file of its own and a row of METRICS."""

from tmatch.eval.captions import captions
from tmatch.eval.latents import energy, frechet
from tmatch.eval.metric import Metric, score

METRICS: dict[str, Metric] = {
    "captions": captions,
    "energy": energy,
    "frechet": frechet,
}
LOWER_IS_BETTER = frozenset({"energy", "frechet"})
"""Rows of METRICS whose score is a distance."""
DEFAULT_METRICS = ("energy",)
"""For data sets without a metric of their own: it needs no captions and few images, and takes latents of any size."""

__all__ = ["DEFAULT_METRICS", "LOWER_IS_BETTER", "METRICS", "Metric", "score"]
