"""The third choice: the kernel p(Y | X_t)."""

from tmatch.kernel.autoregressive import Autoregressive, FullHistory
from tmatch.kernel.base import Choice, Decoding, Kernel, Snapshot, Unmasking
from tmatch.kernel.categorical import Categorical
from tmatch.kernel.flow import Flow, ParallelFlow
from tmatch.kernel.gaussian import GaussianKernel, NoSpread, Spread, UnitDataSpread
from tmatch.kernel.law import Law
from tmatch.kernel.masked import CosineRatio, Masked, MaskedCodes, MaskedTokens, MaskingRatio, TruncatedGaussianRatio
from tmatch.kernel.mean import MeanKernel
from tmatch.kernel.residual import ResidualFlow

__all__ = [
    "Autoregressive",
    "Categorical",
    "Choice",
    "CosineRatio",
    "Decoding",
    "Flow",
    "FullHistory",
    "GaussianKernel",
    "Kernel",
    "Law",
    "Masked",
    "MaskedCodes",
    "MaskedTokens",
    "MaskingRatio",
    "MeanKernel",
    "NoSpread",
    "ParallelFlow",
    "ResidualFlow",
    "Snapshot",
    "Spread",
    "TruncatedGaussianRatio",
    "UnitDataSpread",
    "Unmasking",
]
