"""The third choice: the kernel p(Y | X_t)."""

from tmatch.kernel.autoregressive import Autoregressive, FullHistory
from tmatch.kernel.base import Kernel
from tmatch.kernel.gaussian import GaussianKernel, NoSpread, Spread, UnitDataSpread
from tmatch.kernel.masked import CosineRatio, Masked, MaskedCodes, MaskedTokens, MaskingRatio, TruncatedGaussianRatio
from tmatch.kernel.mean import MeanKernel
from tmatch.kernel.parallel import ParallelFlow
from tmatch.kernel.residual import ResidualFlow

__all__ = [
    "Autoregressive",
    "CosineRatio",
    "FullHistory",
    "GaussianKernel",
    "Kernel",
    "Masked",
    "MaskedCodes",
    "MaskedTokens",
    "MaskingRatio",
    "MeanKernel",
    "NoSpread",
    "ParallelFlow",
    "ResidualFlow",
    "Spread",
    "TruncatedGaussianRatio",
    "UnitDataSpread",
]
