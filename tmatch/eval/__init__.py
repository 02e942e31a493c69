"""Measuring: exact kernels to hold what is learnt against, and the checker of shapes."""

from tmatch.eval.exact import ExactMean, GaussianMixture, PosteriorKernel

__all__ = ["ExactMean", "GaussianMixture", "PosteriorKernel"]
