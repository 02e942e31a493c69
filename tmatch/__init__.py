# ruff: noqa: F401 (the names are exported through _EXPORTS)
"""tmatch: Transition Matching (Shaul, Singer, Gat and Lipman, 2025) as three independent choices."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# OpenMP threads that spin while they wait slow down a shared machine 1.4 to 4 times. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from tmatch.backbone import MLP, Backbone, DiT, HuggingFaceBackbone, Llama, SequenceBackbone
    from tmatch.codec.patch import Patchify
    from tmatch.condition import Condition
    from tmatch.datasets import TensorData
    from tmatch.distribution import Categorical, Flow, TokenDistribution
    from tmatch.generation import Generation, generate
    from tmatch.generation.config import SamplingConfig
    from tmatch.guidance import ClassifierFreeGuidance, Guidance, NoGuidance
    from tmatch.head import FlowHead, Head, TransformerHead
    from tmatch.kernel import (
        Autoregressive,
        CosineRatio,
        DistilledResidual,
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
    from tmatch.pipeline import Pipeline
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
    from tmatch.runs import BackboneConfig, InitConfig, RunConfig, fit, load_model
    from tmatch.runs.export import export
    from tmatch.sampler import (
        SAMPLERS,
        DDIMSampler,
        GlassSampler,
        ODESampler,
        OvershootSampler,
        RestartSampler,
        Sampler,
        SDESampler,
        build_sampler,
    )
    from tmatch.sampling import CodeSampling, HeadSchedule, SamplingParams, Snapshot, Unmasking
    from tmatch.solver import RK4, Adaptive, Euler, Heun, Midpoint, Solver
    from tmatch.times import Continuous, Grid, LogitNormal, Times, Uniform
    from tmatch.train import TrainConfig
    from tmatch.variants import VARIANTS, HeadConfig, Variant, build, variant

_EXPORTS = {
    "tmatch.backbone": "MLP Backbone DiT HuggingFaceBackbone Llama SequenceBackbone",
    "tmatch.codec.patch": "Patchify",
    "tmatch.condition": "Condition",
    "tmatch.datasets": "TensorData",
    "tmatch.distribution": "Categorical Flow TokenDistribution",
    "tmatch.generation": "Generation generate",
    "tmatch.generation.config": "SamplingConfig",
    "tmatch.guidance": "ClassifierFreeGuidance Guidance NoGuidance",
    "tmatch.head": "FlowHead Head TransformerHead",
    "tmatch.kernel": "Autoregressive CosineRatio DistilledResidual FullHistory GaussianKernel Kernel Masked "
    "MaskedCodes MaskedTokens MeanKernel ParallelFlow ResidualFlow TruncatedGaussianRatio unit_data_std",
    "tmatch.model": "FullHistoryMatching Model TransitionMatching",
    "tmatch.parametrization": "CleanState Difference NextState NoiseState Parametrization",
    "tmatch.pipeline": "Pipeline",
    "tmatch.process": "Cosine DiffusionProcess GaussianProcess IndependentLinearProcess Linear LinearProcess "
    "Process VariancePreserving",
    "tmatch.rng": "RandomStreams",
    "tmatch.runs": "BackboneConfig InitConfig RunConfig fit load_model",
    "tmatch.runs.export": "export",
    "tmatch.sampler": "SAMPLERS DDIMSampler GlassSampler ODESampler OvershootSampler RestartSampler "
    "SDESampler Sampler build_sampler",
    "tmatch.sampling": "CodeSampling HeadSchedule SamplingParams Snapshot Unmasking",
    "tmatch.solver": "RK4 Adaptive Euler Heun Midpoint Solver",
    "tmatch.times": "Continuous Grid LogitNormal Times Uniform",
    "tmatch.train": "TrainConfig",
    "tmatch.variants": "VARIANTS HeadConfig Variant build variant",
}
"""Public names by module. A module is imported when one of its names is first used, so `import tmatch` is cheap."""
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'tmatch' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
