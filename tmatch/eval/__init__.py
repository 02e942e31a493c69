"""Measuring: exact kernels, against which everything learnt can be held."""

from tmatch.eval.exact import ExactMean, GaussianMixture, PosteriorKernel

__all__ = ["ExactMean", "GaussianMixture", "PosteriorKernel"]
