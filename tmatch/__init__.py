"""tmatch: Transition Matching (Shaul, Singer, Gat and Lipman, 2025) as three free choices."""

import os

# Waiting OpenMP threads that spin slow a shared machine down 1.4 to 4 times; it counts only before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tmatch.backbone import MLP, Backbone, DiT
from tmatch.condition import Condition
from tmatch.guidance import ClassifierFreeGuidance, Guidance, NoGuidance
from tmatch.head import FlowHead, Head
from tmatch.itinerary import Itinerary, Restart, Straight
from tmatch.kernel import (
    Decoding,
    Flow,
    GaussianKernel,
    Kernel,
    MeanKernel,
    NoSpread,
    ParallelFlow,
    ResidualFlow,
    Snapshot,
    UnitDataSpread,
)
from tmatch.model import Model, TransitionMatching
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
    "Backbone",
    "ClassifierFreeGuidance",
    "CleanState",
    "Condition",
    "Continuous",
    "Cosine",
    "Decoding",
    "DiT",
    "Difference",
    "DiffusionProcess",
    "Euler",
    "Flow",
    "FlowHead",
    "GaussianKernel",
    "GaussianProcess",
    "Generation",
    "Grid",
    "Guidance",
    "Head",
    "HeadConfig",
    "Heun",
    "IndependentLinearProcess",
    "Itinerary",
    "Kernel",
    "Linear",
    "LinearProcess",
    "LogitNormal",
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
    "Snapshot",
    "Solver",
    "Straight",
    "Times",
    "TransitionMatching",
    "Uniform",
    "UnitDataSpread",
    "VariancePreserving",
    "Variant",
    "build",
    "generate",
    "variant",
]
