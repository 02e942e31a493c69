# ruff: noqa: F401 (the imports are exported)
"""tmatch: Transition Matching (Shaul, Singer, Gat and Lipman, 2025) as three independent choices."""

import ast
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# OpenMP threads that spin while they wait slow down a shared machine 1.4 to 4 times. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
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


@cache
def _exports() -> dict[str, str]:
    """The public names and their modules: the imports above, read from the source of this file."""
    nodes = ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tmatch.")]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name on first use (PEP 562), so that `import tmatch` is cheap."""
    exports = _exports()
    if name == "__all__":
        return [*exports]
    if name not in exports:
        raise AttributeError(f"module 'tmatch' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(exports[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_exports()})
