"""The contract: a loss and a sampler of Y given X_t."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.guidance import Guidance, NoGuidance
from tmatch.noise import Noise
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process
from tmatch.solver import Euler, Solver
from tmatch.tensors import State, Time, whole


@dataclass(frozen=True)
class Snapshot:
    """A moment of sampling: X_0 at the start, each state a transition leads to, partial ones where a kernel has them.

    `estimate` is the denoising estimate of X_T from which the transition to x_t was made; `known` (batch, *grid) says
    which tokens of a partial state are drawn, where the others show nothing.
    """

    kind: Literal["start", "transition", "partial"]
    t: float
    x_t: State
    estimate: State | None = None
    known: Tensor | None = None


Order = Literal["random", "raster", "confidence"]


def intermediates(tokens: int, parts: int = 4) -> set[int]:
    """After how many tokens of a transition a partial state is shown: at a quarter, a half, three quarters."""
    return {round(tokens * k / parts) for k in range(1, parts)} - {0, tokens}


def progress(t: float, t_next: float, share: float) -> float:
    """The time when this share of a transition's tokens is drawn."""
    return t + (t_next - t) * share


def _require_temperature(temperature: float) -> None:
    if not 0 <= temperature < math.inf:
        raise ValueError(f"A temperature is a finite number from 0 up; got {temperature}.")


@dataclass(frozen=True)
class Unmasking:
    """How masked kernels fill a state: in how many iterations (None: a token each), in which order.

    'confidence', for codes, keeps those that were drawn with most confidence, to which noise of a falling `temperature`
    is added; for continuous tokens it is a random order.
    """

    iterations: int | None = None
    order: Order = "random"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.iterations is not None:
            whole("The number of mask iterations", self.iterations)
        if self.order not in get_args(Order):
            raise ValueError(f"Tokens are drawn in one of the orders {', '.join(get_args(Order))}; got {self.order!r}.")
        _require_temperature(self.temperature)


@dataclass(frozen=True)
class Choice:
    """How a code is drawn: at a temperature (0 takes the likeliest), from the `top_k` likeliest, or from the likeliest
    that make up `top_p` of the probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        _require_temperature(self.temperature)
        if self.top_k is not None:
            whole("The number of likeliest codes, top-k,", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"The probability of the likeliest codes, top-p, is above 0 and at most 1; got {self.top_p}."
            )


@dataclass(frozen=True)
class Decoding:
    """How to draw from a kernel: choices that cost time, not weights. A kernel takes what concerns it."""

    solver: Solver = Euler(4)
    guidance: Guidance = NoGuidance()
    unmasking: Unmasking = Unmasking()
    choice: Choice = Choice()
    observe: Callable[[Snapshot], None] | None = None

    def report(self, moment: Snapshot) -> None:
        """Show a moment to the observer, if there is one."""
        if self.observe is not None:
            self.observe(moment)


class Kernel(nn.Module, ABC):
    """A probability model of B = Y given A = (t, X_t, condition), with a one-sample loss to learn it."""

    backbone: nn.Module

    @property
    def head(self) -> nn.Module | None:
        """The network called at every solver step, where there is one."""
        return None

    def units(self) -> list[nn.Module]:
        """The parts that are computed one after the other, and gathered so where weights are spread over processes."""
        return [*getattr(self.backbone, "blocks", ()), *([] if self.head is None else [self.head])]

    @abstractmethod
    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, noise: Noise) -> Tensor:
        """D(Y, p(. | X_t)) of Eq. 7, one value an image."""

    @abstractmethod
    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, noise: Noise, decoding: Decoding
    ) -> State:
        """Y ~ p(. | X_t), at one time t for the whole batch; where Y is the next state, it is that at t_next."""

    def check(self, process: Process, parametrization: Parametrization) -> None:
        """Refuse a pair that this kernel cannot learn, in a sentence that says what to use instead."""


def require_independent(name: str, process: Process, parametrization: Parametrization, dependent: bool) -> None:
    """Refuse the process that keeps its noise, unless it is meant as an ablation."""
    if process.noise_kept == "all" and isinstance(parametrization, NextState) and not dependent:
        raise ValueError(
            f"{name} on {type(process).__name__}, whose X_0 is kept, learns to read X_{{t+1}} off X_t and fails when "
            "sampling; use IndependentLinearProcess, or pass dependent=True for the paper's ablation."
        )
