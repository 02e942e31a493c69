"""How to sample from a kernel: choices that cost time, not weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from tmatch.guidance import Guidance, NoGuidance
from tmatch.solver import Euler, Solver
from tmatch.tensors import State, positive_int


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


def progress(t: float, t_next: float, token_fraction: float) -> float:
    """The time when this share of a transition's tokens is drawn."""
    return t + (t_next - t) * token_fraction


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
            positive_int("The number of mask iterations", self.iterations)
        if self.order not in get_args(Order):
            raise ValueError(f"Tokens are drawn in one of the orders {', '.join(get_args(Order))}; got {self.order!r}.")
        _require_temperature(self.temperature)


@dataclass(frozen=True)
class CodeSampling:
    """How a code is drawn: at a temperature (0 takes the likeliest), from the `top_k` likeliest, or from the likeliest
    that make up `top_p` of the probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        _require_temperature(self.temperature)
        if self.top_k is not None:
            positive_int("The number of likeliest codes, top-k,", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"The probability of the likeliest codes, top-p, is above 0 and at most 1; got {self.top_p}."
            )


@dataclass(frozen=True)
class SamplingParams:
    """How to draw from a kernel: choices that cost time, not weights. A kernel takes what concerns it."""

    solver: Solver = Euler(4)
    guidance: Guidance = NoGuidance()
    unmasking: Unmasking = Unmasking()
    choice: CodeSampling = CodeSampling()
    observe: Callable[[Snapshot], None] | None = None

    def report(self, fixed_time: Snapshot) -> None:
        """Show a moment to the observer, if there is one."""
        if self.observe is not None:
            self.observe(fixed_time)
