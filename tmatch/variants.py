"""The table: every method is a row of process x parametrization x kernel x times."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

from torch import nn

from tmatch.head import FlowHead
from tmatch.itinerary import Itinerary, Restart, Straight
from tmatch.kernel import Flow, GaussianKernel, Kernel, MeanKernel, NoSpread, ParallelFlow, ResidualFlow, Spread
from tmatch.layers import initialise
from tmatch.model import Model, TransitionMatching
from tmatch.parametrization import CleanState, Difference, NoiseState, Parametrization
from tmatch.process import DiffusionProcess, GaussianProcess, LinearProcess, Process, VariancePreserving
from tmatch.times import Continuous, Density, Grid, Times, Uniform


@dataclass(frozen=True)
class HeadConfig:
    """The flow head: the paper's has 6 layers, 1024 wide. `patch` counts backbone tokens a head token covers."""

    width: int = 1024
    depth: int = 6
    patch: tuple[int, ...] | None = None
    draws: int = 1
    density: Density = Uniform()


KernelFactory = Callable[[nn.Module, int, HeadConfig], Kernel]


def _readout(backbone: nn.Module, channels: int) -> nn.Linear:
    readout = nn.Linear(_width(backbone), channels)
    initialise(readout, readout)
    return readout


def _width(backbone: nn.Module) -> int:
    width = getattr(backbone, "width", None)
    if not isinstance(width, int):
        raise ValueError(
            f"{type(backbone).__name__} does not say how wide its output is; give it an integer attribute `width`."
        )
    return width


def _flow(backbone: nn.Module, channels: int, head: HeadConfig) -> Flow:
    tokens = prod(head.patch or (1,))
    network = FlowHead(tokens * channels, tokens * _width(backbone), head.width, head.depth)
    return Flow(network, head.draws, head.density)


def mean(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """E[Y | X_t] by a linear read-out; no head."""
    return MeanKernel(backbone, _readout(backbone, channels))


def gaussian(spread: Spread) -> KernelFactory:
    """N(E[Y | X_t], w_t^2 I) by a linear read-out; no head."""
    return lambda backbone, channels, head: GaussianKernel(backbone, _readout(backbone, channels), spread)


def parallel_flow(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """All tokens in parallel by a flow head."""
    return ParallelFlow(backbone, _flow(backbone, channels, head), head.patch)


def residual_flow(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """The mean by a linear read-out, and what is left of all tokens in parallel by a flow head."""
    return ResidualFlow(backbone, _readout(backbone, channels), _flow(backbone, channels, head), head.patch)


@dataclass(frozen=True)
class Variant:
    """One method. `given` is the paper's B | A in words, `itinerary` the way along the times when sampling."""

    process: Process
    parametrization: Parametrization
    kernel: KernelFactory
    times: Times
    given: str
    itinerary: Itinerary = Straight()
    model: Callable[[Process, Parametrization, Kernel, Times, Itinerary], Model] = TransitionMatching

    def build(self, backbone: nn.Module, channels: int, head: HeadConfig = HeadConfig()) -> Model:
        """The model, on any backbone; `channels` is the width of a token."""
        kernel = self.kernel(backbone, channels, head)
        return self.model(self.process, self.parametrization, kernel, self.times, self.itinerary)


_VP = VariancePreserving()

VARIANTS: dict[str, Variant] = {
    "dtm": Variant(
        LinearProcess(), Difference(), parallel_flow, Continuous(steps=32),
        given="all tokens in parallel, each by flow matching, given (t, X_t)",
    ),
    "dtm-32": Variant(
        LinearProcess(), Difference(), parallel_flow, Grid.uniform(32),
        given="all tokens in parallel, each by flow matching, given (t, X_t)",
    ),
    "dtm-mean": Variant(
        LinearProcess(), Difference(), residual_flow, Continuous(steps=32),
        given="the mean by regression, the rest as in dtm, given (t, X_t); not in the paper",
    ),
    "fm": Variant(
        LinearProcess(), Difference(), mean, Continuous(steps=256),
        given="the mean, given (t, X_t): an Euler step",
    ),
    "fm-restart": Variant(
        LinearProcess(), Difference(), mean, Continuous(steps=1000),
        given="the mean, given (t, X_t); noise added back while sampling", itinerary=Restart(),
    ),
    "ddpm": Variant(
        DiffusionProcess(_VP), NoiseState(), gaussian(NoSpread()), Grid.uniform(1000),
        given="Gaussian, given (t, X_t); the chain adds variance beta-tilde",
    ),
    "ddim": Variant(
        GaussianProcess(_VP), NoiseState(), gaussian(NoSpread()), Grid.uniform(1000),
        given="Gaussian, given (t, X_t), in the limit w_t = 0",
    ),
    "x-prediction": Variant(
        DiffusionProcess(_VP), CleanState(), gaussian(NoSpread()), Grid.uniform(1000),
        given="Gaussian, given (t, X_t); the chain adds variance beta-tilde",
    ),
}  # fmt: skip


def variant(name: str) -> Variant:
    """The row of that name."""
    if name in VARIANTS:
        return VARIANTS[name]
    meant = get_close_matches(name.lower(), VARIANTS, n=1, cutoff=0.4)
    hint = f" (did you mean '{meant[0]}'?)" if meant else ""
    raise ValueError(f"There is no variant '{name}'{hint}; the variants are {', '.join(VARIANTS)}.")


def build(name: str, backbone: nn.Module, channels: int, head: HeadConfig = HeadConfig()) -> Model:
    """The model of a named variant, on any backbone."""
    return variant(name).build(backbone, channels, head)
