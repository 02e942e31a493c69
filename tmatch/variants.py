"""The table of methods: every variant is a row of process x parametrization x kernel x times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

from pydantic import AfterValidator, Field
from torch import nn

from tmatch.config import Config, Dimension, Layers, lookup
from tmatch.distribution import DISTRIBUTIONS, Categorical, TokenDistribution
from tmatch.head import HEADS
from tmatch.kernel import (
    Autoregressive,
    CosineRatio,
    DistilledResidual,
    FullHistory,
    GaussianKernel,
    Kernel,
    Masked,
    MaskedCodes,
    MaskingRatio,
    MeanKernel,
    ParallelFlow,
    ResidualFlow,
    TruncatedGaussianRatio,
)
from tmatch.layers import initialise
from tmatch.model import FullHistoryMatching, Model, TransitionMatching
from tmatch.parametrization import CleanState, Difference, NextState, NoiseState, Parametrization
from tmatch.process import DiffusionProcess, IndependentLinearProcess, LinearProcess, Process, VariancePreserving
from tmatch.tensors import positive_int
from tmatch.times import DENSITIES, Continuous, Grid, Times


def _one_of(what: str, table: Mapping[str, object]) -> AfterValidator:
    """Validate that a string is a key of a table."""

    def validate(name: str) -> str:
        lookup(what, table, name)
        return name

    return AfterValidator(validate)


class HeadConfig(Config):
    """The head of the variants that have one; the paper's has 6 layers of width 1024."""

    kind: Annotated[str, _one_of("head", HEADS)] = Field(default="mlp", description=f"network: {', '.join(HEADS)}")
    distribution: Annotated[str, _one_of("distribution", DISTRIBUTIONS)] = Field(
        default="flow", description=f"model of a token given the backbone's output: {', '.join(DISTRIBUTIONS)}"
    )
    width: Dimension | None = Field(default=None, description="hidden width; None: that of the backbone")
    depth: Layers = Field(default=6, description="number of blocks")
    patch: tuple[Dimension, ...] | None = Field(
        default=None, description="backbone tokens that one head token covers, such as (1, 4)"
    )
    samples_per_token: Layers = Field(default=1, description="pairs (s, noise) per token in training")
    token_fraction: float = Field(default=1.0, gt=0, le=1, description="fraction of tokens the head trains on per step")
    distill: bool = Field(
        default=False,
        description="train the head on the exact velocity of the mean read-out, not on samples; needs a joint head",
    )
    density: Annotated[str, _one_of("density", DENSITIES)] = Field(
        default="uniform", description=f"density of s in training: {', '.join(DENSITIES)}"
    )


KernelFactory = Callable[[nn.Module, int, HeadConfig, int | None], Kernel]
"""(backbone, channels, head, codebook_size) -> kernel."""


def _integer(backbone: nn.Module, name: str) -> int:
    value = getattr(backbone, name, None)
    if not isinstance(value, int):
        raise ValueError(f"{type(backbone).__name__} has no integer attribute `{name}`; add one.")
    return value


def _readout(backbone: nn.Module, channels: int) -> nn.Linear:
    readout = nn.Linear(_integer(backbone, "width"), channels)
    initialise(readout, readout)
    return readout


def _distribution(backbone: nn.Module, channels: int, head: HeadConfig, timed: bool = True) -> TokenDistribution:
    tokens, width = prod(head.patch or (1,)), _integer(backbone, "width")
    network = HEADS[head.kind](tokens * channels, tokens * width, head.width or width, head.depth, timed)
    return DISTRIBUTIONS[head.distribution](network, head.samples_per_token, DENSITIES[head.density])


def _on_samples(backbone: nn.Module, channels: int, head: HeadConfig, timed: bool = True) -> TokenDistribution:
    if head.distill:
        raise ValueError("head.distill needs a variant with a mean read-out and a head: use dtm-mean.")
    return _distribution(backbone, channels, head, timed)


def _in_turn(backbone: nn.Module, channels: int, head: HeadConfig, timed: bool = True) -> TokenDistribution:
    if head.patch is not None or head.token_fraction != 1:
        raise ValueError("Variants that sample tokens in turn support neither head.patch nor head.token_fraction.")
    return _on_samples(backbone, channels, head, timed)


def _categorical(backbone: nn.Module, codebook_size: int | None) -> Categorical:
    if codebook_size is None:
        raise ValueError("Discrete variants need codebook_size, the number of codes of the autoencoder.")
    return Categorical(codebook_size, _integer(backbone, "channels"), _integer(backbone, "width"))


def _mean(backbone: nn.Module, channels: int, head: HeadConfig, codebook_size: int | None) -> Kernel:
    return MeanKernel(backbone, _readout(backbone, channels))


def _gaussian(backbone: nn.Module, channels: int, head: HeadConfig, codebook_size: int | None) -> Kernel:
    return GaussianKernel(backbone, _readout(backbone, channels))


def _parallel(backbone: nn.Module, channels: int, head: HeadConfig, codebook_size: int | None) -> Kernel:
    return ParallelFlow(backbone, _on_samples(backbone, channels, head), head.patch, head.token_fraction)


def _residual(backbone: nn.Module, channels: int, head: HeadConfig, codebook_size: int | None) -> Kernel:
    distribution = _distribution(backbone, channels, head)
    kernel = DistilledResidual if head.distill else ResidualFlow
    return kernel(backbone, _readout(backbone, channels), distribution, head.patch, head.token_fraction)


def _autoregressive(dependent: bool) -> KernelFactory:
    return lambda backbone, channels, head, _: Autoregressive(backbone, _in_turn(backbone, channels, head), dependent)


def _full_history(dependent: bool) -> KernelFactory:
    return lambda backbone, channels, head, _: FullHistory(
        backbone, _in_turn(backbone, channels, head, timed=False), channels, dependent
    )


def _masked(ratio: MaskingRatio) -> KernelFactory:
    return lambda backbone, channels, head, _: Masked(
        backbone, _in_turn(backbone, channels, head), channels, _integer(backbone, "channels"), ratio
    )


def _causal_codes(backbone: nn.Module, channels: int, head: HeadConfig, codebook_size: int | None) -> Kernel:
    return FullHistory(backbone, _categorical(backbone, codebook_size), _integer(backbone, "channels"))


def _masked_codes(backbone: nn.Module, channels: int, head: HeadConfig, codebook_size: int | None) -> Kernel:
    return MaskedCodes(backbone, _categorical(backbone, codebook_size), CosineRatio())


@dataclass(frozen=True)
class Variant:
    """One method. `given` is the paper's B | A in words.

    `attention` is the backbone's mask, `evaluations` its calls per image: T transitions of n tokens, or of K mask
    iterations. A variant that is not `timed` needs a backbone without time. A `discrete` one models the codes of a
    discrete autoencoder. If it `embeds` tokens itself, the backbone may have any number of channels.
    """

    process: Process
    parametrization: Parametrization
    kernel: KernelFactory
    times: Times
    given: str
    model: Callable[[Process, Parametrization, Kernel, Times], Model] = TransitionMatching
    attention: str = "full"
    evaluations: str = "T"
    timed: bool = True
    discrete: bool = False
    embeds: bool = False

    def build(
        self, backbone: nn.Module, channels: int, head: HeadConfig = HeadConfig(), codebook_size: int | None = None
    ) -> Model:
        """The model on any backbone, for tokens of `channels` numbers; discrete variants need a `codebook_size`."""
        positive_int("channels", channels)
        if getattr(backbone, "timed", self.timed) != self.timed:
            need = "reads the time: use a DiT" if self.timed else "reads no time: use a Llama, or an untimed DiT"
            raise ValueError(f"This variant needs a backbone that {need}.")
        kernel = self.kernel(backbone, channels, head, codebook_size)
        return self.model(self.process, self.parametrization, kernel, self.times)


_VP = VariancePreserving()
_INDEPENDENT = IndependentLinearProcess()


def _artm(times: Grid, process: Process = _INDEPENDENT, dependent: bool = False) -> Variant:
    return Variant(
        process, NextState(), _autoregressive(dependent), times,
        given="token by token by flow matching, given (t, X_t, X_{t+1}^{<i})",
        attention="full on X_t, causal on X_{t+1}", evaluations="T n",
    )  # fmt: skip


def _fhtm(times: Grid, process: Process = _INDEPENDENT, dependent: bool = False) -> Variant:
    return Variant(
        process, NextState(), _full_history(dependent), times, model=FullHistoryMatching,
        given="token by token by flow matching, given (X_0, ..., X_t, X_{t+1}^{<i})",
        attention="causal", evaluations="T n", timed=False,
    )  # fmt: skip


def _martm(times: Grid, ratio: MaskingRatio) -> Variant:
    return Variant(
        _INDEPENDENT, NextState(), _masked(ratio), times,
        given=f"random sets of tokens, {ratio}, by flow matching, given (t, X_t, the known)", evaluations="T K",
        embeds=True,
    )  # fmt: skip


VARIANTS: dict[str, Variant] = {
    "dtm": Variant(
        LinearProcess(), Difference(), _parallel, Continuous(steps=32),
        given="all tokens in parallel, each by flow matching, given (t, X_t)",
    ),
    "dtm-32": Variant(
        LinearProcess(), Difference(), _parallel, Grid.uniform(32),
        given="all tokens in parallel, each by flow matching, given (t, X_t)",
    ),
    "dtm-mean": Variant(
        LinearProcess(), Difference(), _residual, Continuous(steps=32),
        given="the mean by regression, the residual as in dtm, given (t, X_t); not in the paper",
    ),
    "fm": Variant(
        LinearProcess(), Difference(), _mean, Continuous(steps=256),
        given="the mean, given (t, X_t): an Euler step",
    ),
    "ddpm": Variant(
        DiffusionProcess(_VP), NoiseState(), _gaussian, Grid.uniform(1000),
        given="Gaussian, given (t, X_t); the chain adds variance beta-tilde",
    ),
    "x-prediction": Variant(
        DiffusionProcess(_VP), CleanState(), _gaussian, Grid.uniform(1000),
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
        _INDEPENDENT, NextState(), _causal_codes, Grid.uniform(1), model=FullHistoryMatching,
        given="code by code, categorical, given the codes before",
        attention="causal", evaluations="n", timed=False, discrete=True, embeds=True,
    ),
    "mar-discrete": Variant(
        _INDEPENDENT, NextState(), _masked_codes, Grid.uniform(1),
        given="random sets of codes, categorical, given the known", evaluations="K", discrete=True, embeds=True,
    ),
}  # fmt: skip


def variant(name: str) -> Variant:
    """The variant of that name."""
    return lookup("variant", VARIANTS, name)


def build(
    name: str, backbone: nn.Module, channels: int, head: HeadConfig = HeadConfig(), codebook_size: int | None = None,
) -> Model:  # fmt: skip
    """The model of a named variant on any backbone; see `Variant.build`."""
    return variant(name).build(backbone, channels, head, codebook_size)
