"""Evaluation: a metric is a function (`eval/metric.py`) in a file of its own and a row of METRICS."""

from tmatch.eval.captions import captions
from tmatch.eval.metric import Metric

METRICS: dict[str, Metric] = {
    "captions": captions,
}

__all__ = ["METRICS", "Metric"]
