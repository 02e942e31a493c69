"""The third choice: the kernel p(Y | X_t).

A kernel is a probability model of Y given X_t (and t and a condition): a backbone that reads the state, a `loss` that
needs one sample of Y (Eq. 7), and `sample`. The more it can express, the fewer transitions are needed:

    MeanKernel       E[Y | X_t] alone: flow matching, where every transition is an Euler step
    GaussianKernel   a Gaussian of given standard deviation around that mean: DDPM
    ParallelFlow     all tokens at once, independent given h_t, each by a flow head: DTM
    ResidualFlow     the mean by regression, the residual as in ParallelFlow
    DistilledResidual   the same, learned from the mean's exact velocity
    Autoregressive   token after token, with a KV cache: ARTM, and AR with T = 1
    FullHistory      token after token, given all earlier states too: FHTM
    Masked           a few tokens per iteration, in any order: MARTM, and MAR with T = 1
    MaskedCodes      the same for codes: MaskGIT
    MeanODE          sampling from a mean by an ODE solver over t: flow matching by more than Euler steps
    JointKernel      sampling from a mean jointly over all tokens, by an inner ODE: GLASS

Kernels that sample tokens hold a `distribution`, p(token | h); it is None for the others. Kernels flatten the grid of
tokens once: distributions and heads see (batch, tokens, ...).
"""

from tmatch.kernel.autoregressive import Autoregressive, FullHistory
from tmatch.kernel.base import Kernel, MeanPredictor
from tmatch.kernel.distilled import DistilledResidual
from tmatch.kernel.gaussian import GaussianKernel, unit_data_std
from tmatch.kernel.masked import CosineRatio, Masked, MaskedCodes, MaskedTokens, MaskingRatio, TruncatedGaussianRatio
from tmatch.kernel.mean import MeanKernel
from tmatch.kernel.mean_solver import JointKernel, MeanODE
from tmatch.kernel.parallel import ParallelFlow
from tmatch.kernel.residual import ResidualFlow

__all__ = [
    "Autoregressive",
    "CosineRatio",
    "DistilledResidual",
    "FullHistory",
    "GaussianKernel",
    "JointKernel",
    "Kernel",
    "Masked",
    "MaskedCodes",
    "MaskedTokens",
    "MaskingRatio",
    "MeanKernel",
    "MeanODE",
    "MeanPredictor",
    "ParallelFlow",
    "ResidualFlow",
    "TruncatedGaussianRatio",
    "unit_data_std",
]
