"""Evaluation: metrics on generated images, and exact kernels that samplers are tested against.

A metric is a function (`eval/metric.py`) in a file of its own and a row of METRICS; `tmatch evaluate --metrics NAME`
then computes it.
"""

from tmatch.eval.captions import captions
from tmatch.eval.exact import ExactMean, GaussianMixture, PosteriorKernel
from tmatch.eval.metric import Metric

METRICS: dict[str, Metric] = {
    "captions": captions,
}

__all__ = ["METRICS", "ExactMean", "GaussianMixture", "Metric", "PosteriorKernel"]
