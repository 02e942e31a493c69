"""The third choice: the kernel p(Y | X_t)."""

from tmatch.kernel.base import Decoding, Kernel, Snapshot
from tmatch.kernel.flow import Flow, ParallelFlow
from tmatch.kernel.gaussian import GaussianKernel, NoSpread, Spread, UnitDataSpread
from tmatch.kernel.mean import MeanKernel
from tmatch.kernel.residual import ResidualFlow

__all__ = [
    "Decoding",
    "Flow",
    "GaussianKernel",
    "Kernel",
    "MeanKernel",
    "NoSpread",
    "ParallelFlow",
    "ResidualFlow",
    "Snapshot",
    "Spread",
    "UnitDataSpread",
]
