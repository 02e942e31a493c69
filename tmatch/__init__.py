"""tmatch: Transition Matching (Shaul, Singer, Gat and Lipman, 2025) as three free choices."""

import os

# Waiting OpenMP threads that spin slow a shared machine down 1.4 to 4 times; it counts only before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tmatch.backbone import MLP, Backbone, DiT, HuggingFaceBackbone, Llama, SequenceBackbone
from tmatch.condition import Condition
from tmatch.guidance import ClassifierFreeGuidance, Guidance, NoGuidance
from tmatch.head import FlowHead, Head
from tmatch.itinerary import Itinerary, Restart, Straight
from tmatch.kernel import (
    Autoregressive,
    Categorical,
    Choice,
    CosineRatio,
    Decoding,
    Flow,
    FullHistory,
    GaussianKernel,
    Kernel,
    Law,
    Masked,
    MaskedCodes,
    MaskedTokens,
    MeanKernel,
    NoSpread,
    ParallelFlow,
    ResidualFlow,
    Snapshot,
    TruncatedGaussianRatio,
    UnitDataSpread,
    Unmasking,
)
from tmatch.model import FullHistoryMatching, Model, TransitionMatching
from tmatch.noise import Noise
from tmatch.parametrization import CleanState, Difference, NextState, NoiseState, Parametrization
from tmatch.patch import Patchify
from tmatch.process import (
    Cosine,
    DiffusionProcess,
    GaussianProcess,
    IndependentLinearProcess,
    Linear,
    LinearProcess,
    Process,
    VariancePreserving,
)
from tmatch.sample import Generation, generate
from tmatch.solver import RK4, Adaptive, Euler, Heun, Midpoint, Solver
from tmatch.times import Continuous, Grid, LogitNormal, Times, Uniform
from tmatch.variants import VARIANTS, HeadConfig, Variant, build, variant

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "RK4",
    "VARIANTS",
    "Adaptive",
    "Autoregressive",
    "Backbone",
    "Categorical",
    "Choice",
    "ClassifierFreeGuidance",
    "CleanState",
    "Condition",
    "Continuous",
    "Cosine",
    "CosineRatio",
    "Decoding",
    "DiT",
    "Difference",
    "DiffusionProcess",
    "Euler",
    "Flow",
    "FlowHead",
    "FullHistory",
    "FullHistoryMatching",
    "GaussianKernel",
    "GaussianProcess",
    "Generation",
    "Grid",
    "Guidance",
    "Head",
    "HeadConfig",
    "Heun",
    "HuggingFaceBackbone",
    "IndependentLinearProcess",
    "Itinerary",
    "Kernel",
    "Law",
    "Linear",
    "LinearProcess",
    "Llama",
    "LogitNormal",
    "Masked",
    "MaskedCodes",
    "MaskedTokens",
    "MeanKernel",
    "Midpoint",
    "Model",
    "NextState",
    "NoGuidance",
    "NoSpread",
    "Noise",
    "NoiseState",
    "ParallelFlow",
    "Parametrization",
    "Patchify",
    "Process",
    "ResidualFlow",
    "Restart",
    "SequenceBackbone",
    "Snapshot",
    "Solver",
    "Straight",
    "Times",
    "TransitionMatching",
    "TruncatedGaussianRatio",
    "Uniform",
    "UnitDataSpread",
    "Unmasking",
    "VariancePreserving",
    "Variant",
    "build",
    "generate",
    "variant",
]
