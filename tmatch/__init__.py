"""tmatch: Transition Matching (Shaul, Singer, Gat and Lipman, 2025) as three free choices."""

import os

# Waiting OpenMP threads that spin slow a shared machine down 1.4 to 4 times; it counts only before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tmatch.backbone import MLP, Backbone, DiT, HuggingFaceBackbone, Llama, SequenceBackbone
from tmatch.codec.patch import Patchify
from tmatch.condition import Condition
from tmatch.distribution import Categorical, Flow, TokenDistribution
from tmatch.generation import Generation, generate
from tmatch.guidance import ClassifierFreeGuidance, Guidance, NoGuidance
from tmatch.head import FlowHead, Head
from tmatch.kernel import (
    Autoregressive,
    CosineRatio,
    FullHistory,
    GaussianKernel,
    Kernel,
    Masked,
    MaskedCodes,
    MaskedTokens,
    MeanKernel,
    ParallelFlow,
    ResidualFlow,
    TruncatedGaussianRatio,
    unit_data_std,
)
from tmatch.model import FullHistoryMatching, Model, TransitionMatching
from tmatch.parametrization import CleanState, Difference, NextState, NoiseState, Parametrization
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
from tmatch.rng import RandomStreams
from tmatch.sampler import SAMPLERS, DDIMSampler, RestartSampler, Sampler, build_sampler
from tmatch.sampling import CodeSampling, SamplingParams, Snapshot, Unmasking
from tmatch.solver import RK4, Adaptive, Euler, Heun, Midpoint, Solver
from tmatch.times import Continuous, Grid, LogitNormal, Times, Uniform
from tmatch.variants import VARIANTS, HeadConfig, Variant, build, variant

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "RK4",
    "SAMPLERS",
    "VARIANTS",
    "Adaptive",
    "Autoregressive",
    "Backbone",
    "Categorical",
    "ClassifierFreeGuidance",
    "CleanState",
    "CodeSampling",
    "Condition",
    "Continuous",
    "Cosine",
    "CosineRatio",
    "DDIMSampler",
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
    "Kernel",
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
    "NoiseState",
    "ParallelFlow",
    "Parametrization",
    "Patchify",
    "Process",
    "RandomStreams",
    "ResidualFlow",
    "RestartSampler",
    "Sampler",
    "SamplingParams",
    "SequenceBackbone",
    "Snapshot",
    "Solver",
    "Times",
    "TokenDistribution",
    "TransitionMatching",
    "TruncatedGaussianRatio",
    "Uniform",
    "Unmasking",
    "VariancePreserving",
    "Variant",
    "build",
    "build_sampler",
    "generate",
    "unit_data_std",
    "variant",
]
