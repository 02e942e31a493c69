"""The table: every method is a row of process x parametrization x kernel x times."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

from torch import nn

from tmatch.distribution import Categorical, Flow
from tmatch.head import FlowHead
from tmatch.kernel import (
    Autoregressive,
    CosineRatio,
    FullHistory,
    GaussianKernel,
    Kernel,
    Masked,
    MaskedCodes,
    MaskingRatio,
    MeanKernel,
    NoSpread,
    ParallelFlow,
    ResidualFlow,
    Spread,
    TruncatedGaussianRatio,
)
from tmatch.layers import initialise
from tmatch.model import FullHistoryMatching, Model, TransitionMatching
from tmatch.parametrization import CleanState, Difference, NextState, NoiseState, Parametrization
from tmatch.process import (
    DiffusionProcess,
    GaussianProcess,
    IndependentLinearProcess,
    LinearProcess,
    Process,
    VariancePreserving,
)
from tmatch.sampler import RestartSampler, Sampler
from tmatch.times import Continuous, Density, Grid, Times, Uniform


@dataclass(frozen=True)
class HeadConfig:
    """The flow head: the paper's has 6 layers, 1024 wide. `patch` counts backbone tokens a head token covers."""

    width: int = 1024
    depth: int = 6
    patch: tuple[int, ...] | None = None
    samples_per_token: int = 1
    density: Density = Uniform()
    token_fraction: float = 1.0
    """Of the tokens of an image, those the head learns from at a step, for the rows that draw all in parallel."""
    codes: int | None = None
    """How many codes the tokenizer has, for the rows that draw codes."""


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


def _flow(backbone: nn.Module, channels: int, head: HeadConfig, timed: bool = True) -> Flow:
    tokens = prod(head.patch or (1,))
    network = FlowHead(tokens * channels, tokens * _width(backbone), head.width, head.depth, timed)
    return Flow(network, head.samples_per_token, head.density)


def _token(backbone: nn.Module, channels: int, head: HeadConfig, timed: bool = True) -> Flow:
    if head.patch is not None or head.token_fraction != 1:
        raise ValueError(
            "Kernels that draw tokens in turn have no head patch, nor a share; leave them out, or take dtm."
        )
    return _flow(backbone, channels, head, timed)


def _codes(backbone: nn.Module, head: HeadConfig) -> Categorical:
    if head.codes is None:
        raise ValueError("This row draws codes: say how many the tokenizer has, HeadConfig(codes=...).")
    if head.patch is not None or head.token_fraction != 1 or head.samples_per_token != 1:
        raise ValueError("Rows that draw codes have no head, hence no head patch, share or draws; leave them out.")
    if _channels(backbone) == 1:
        raise ValueError("The backbone reads a vector for each code: build it with as many channels as it is wide.")
    return Categorical(head.codes, _channels(backbone), _width(backbone))


def _channels(backbone: nn.Module) -> int:
    channels = getattr(backbone, "channels", None)
    if not isinstance(channels, int):
        raise ValueError(
            f"{type(backbone).__name__} does not say how wide its tokens are; give it an integer attribute `channels`."
        )
    return channels


def mean(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """E[Y | X_t] by a linear read-out; no head."""
    return MeanKernel(backbone, _readout(backbone, channels))


def gaussian(spread: Spread) -> KernelFactory:
    """N(E[Y | X_t], w_t^2 I) by a linear read-out; no head."""
    return lambda backbone, channels, head: GaussianKernel(backbone, _readout(backbone, channels), spread)


def parallel_flow(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """All tokens in parallel by a flow head."""
    return ParallelFlow(backbone, _flow(backbone, channels, head), head.patch, head.token_fraction)


def residual_flow(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """The mean by a linear read-out, and what is left of all tokens in parallel by a flow head."""
    flow = _flow(backbone, channels, head)
    return ResidualFlow(backbone, _readout(backbone, channels), flow, head.patch, head.token_fraction)


def autoregressive(dependent: bool = False) -> KernelFactory:
    """Token after token by a flow head, given X_t and the tokens before."""
    return lambda backbone, channels, head: Autoregressive(backbone, _token(backbone, channels, head), dependent)


def full_history(dependent: bool = False) -> KernelFactory:
    """Token after token by a flow head, given every state and token before; no time."""
    return lambda backbone, channels, head: FullHistory(
        backbone, _token(backbone, channels, head, timed=False), channels, dependent
    )


def masked(ratio: MaskingRatio) -> KernelFactory:
    """Some tokens at a time by a flow head, given X_t and the known ones."""
    return lambda backbone, channels, head: Masked(
        backbone, _token(backbone, channels, head), channels, _channels(backbone), ratio
    )


def codes_in_turn(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """Code after code by a softmax."""
    return FullHistory(backbone, _codes(backbone, head), _channels(backbone))


def masked_codes(backbone: nn.Module, channels: int, head: HeadConfig) -> Kernel:
    """Some codes at a time by a softmax, given the known ones."""
    return MaskedCodes(backbone, _codes(backbone, head), CosineRatio())


@dataclass(frozen=True)
class Variant:
    """One method. `given` is the paper's B | A in words, `sampler` the way along the times when sampling.

    `attention` says what sees what, `evaluations` how often the backbone is called for an image: T transitions of n
    tokens, or of K mask iterations. A row that is not `timed` takes a backbone without time, one of `codes` states of a
    discrete autoencoder, and the backbone of one that `embeds` tokens itself may read tokens of any width.
    """

    process: Process
    parametrization: Parametrization
    kernel: KernelFactory
    times: Times
    given: str
    sampler: Sampler = Sampler()
    model: Callable[[Process, Parametrization, Kernel, Times, Sampler], Model] = TransitionMatching
    attention: str = "full"
    evaluations: str = "T"
    timed: bool = True
    codes: bool = False
    embeds: bool = False

    def build(self, backbone: nn.Module, channels: int, head: HeadConfig = HeadConfig()) -> Model:
        """The model, on any backbone; `channels` is the width of a token."""
        if getattr(backbone, "timed", self.timed) != self.timed:
            need = (
                "a time: take a DiT with timed=True"
                if self.timed
                else "no time: take a Llama, or a DiT with timed=False"
            )
            raise ValueError(f"The backbone of this row reads {need}.")
        kernel = self.kernel(backbone, channels, head)
        return self.model(self.process, self.parametrization, kernel, self.times, self.sampler)


_VP = VariancePreserving()
_INDEPENDENT = IndependentLinearProcess()


def _artm(times: Grid, process: Process = _INDEPENDENT, dependent: bool = False) -> Variant:
    return Variant(
        process, NextState(), autoregressive(dependent), times,
        given="token by token by flow matching, given (t, X_t, X_{t+1}^{<i})",
        attention="full on X_t, causal on X_{t+1}", evaluations="T n",
    )  # fmt: skip


def _fhtm(times: Grid, process: Process = _INDEPENDENT, dependent: bool = False) -> Variant:
    return Variant(
        process, NextState(), full_history(dependent), times, model=FullHistoryMatching,
        given="token by token by flow matching, given (X_0, ..., X_t, X_{t+1}^{<i})",
        attention="causal", evaluations="T n", timed=False,
    )  # fmt: skip


def _martm(times: Grid, ratio: MaskingRatio) -> Variant:
    return Variant(
        _INDEPENDENT, NextState(), masked(ratio), times,
        given=f"random sets of tokens, {ratio}, by flow matching, given (t, X_t, the known)", evaluations="T K",
        embeds=True,
    )  # fmt: skip


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
        given="the mean, given (t, X_t); noise added back while sampling", sampler=RestartSampler(),
        evaluations="2.4 T",
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
    "ar": _artm(Grid.uniform(1)),
    "artm-2": _artm(Grid.exponential(2)),
    "artm-3": _artm(Grid.exponential(3)),
    "artm-3-uniform": _artm(Grid.uniform(3)),
    "artm-3-dependent": _artm(Grid.exponential(3), LinearProcess(), dependent=True),
    "fhtm-2": _fhtm(Grid.exponential(2)),
    "fhtm-3": _fhtm(Grid.exponential(3)),
    "fhtm-3-uniform": _fhtm(Grid.uniform(3)),
    "fhtm-3-dependent": _fhtm(Grid.exponential(3), LinearProcess(), dependent=True),
    "mar": _martm(Grid.uniform(1), TruncatedGaussianRatio()),
    "mar-fluid": _martm(Grid.uniform(1), CosineRatio()),
    "martm-2": _martm(Grid.exponential(2), CosineRatio()),
    "martm-3": _martm(Grid.exponential(3), CosineRatio()),
    "ar-discrete": Variant(
        _INDEPENDENT, NextState(), codes_in_turn, Grid.uniform(1), model=FullHistoryMatching,
        given="code by code, categorical, given the codes before",
        attention="causal", evaluations="n", timed=False, codes=True, embeds=True,
    ),
    "mar-discrete": Variant(
        _INDEPENDENT, NextState(), masked_codes, Grid.uniform(1),
        given="random sets of codes, categorical, given the known", evaluations="K", codes=True, embeds=True,
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
