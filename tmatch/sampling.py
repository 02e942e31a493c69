"""How to sample from a kernel: options that cost time and do not depend on the weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self, get_args

from torch import Tensor

from tmatch.config import MAX_SAMPLING_STEPS
from tmatch.guidance import Guidance, NoGuidance
from tmatch.solver import Euler, FixedStep, Solver
from tmatch.tensors import State, positive_int


@dataclass(frozen=True)
class Snapshot:
    """A state seen during sampling: X_0, the result of each transition, and partial states of some kernels.

    `estimate` is the denoising estimate of X_T that the transition to x_t used; `known` (batch, *grid) marks the tokens
    of a partial state that are sampled.
    """

    kind: Literal["start", "transition", "partial"]
    t: float
    x_t: State
    estimate: State | None = None
    known: Tensor | None = None


Callback = Callable[[Snapshot], None]
UnmaskOrder = Literal["random", "raster", "confidence"]
HeadProgress = Literal["tokens", "time"]


def intermediates(tokens: int, parts: int = 4) -> set[int]:
    """The numbers of sampled tokens at which a transition reports a partial state: at each quarter."""
    return {round(tokens * k / parts) for k in range(1, parts)} - {0, tokens}


def _require_temperature(temperature: float) -> None:
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be a finite number of at least 0; got {temperature}.")


@dataclass(frozen=True)
class Unmasking:
    """How masked kernels fill a state: the number of iterations (None: one per token) and the order of the tokens.

    The order 'confidence' keeps the most confident codes, after adding noise whose `temperature` decays over the
    iterations; with continuous tokens it equals 'random'.
    """

    iterations: int | None = None
    order: UnmaskOrder = "random"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.iterations is not None:
            positive_int("The number of mask iterations", self.iterations)
        if self.order not in get_args(UnmaskOrder):
            raise ValueError(f"order must be one of {', '.join(get_args(UnmaskOrder))}; got {self.order!r}.")
        _require_temperature(self.temperature)


@dataclass(frozen=True)
class CodeSampling:
    """How codes are sampled: temperature (0 is greedy), top-k and top-p."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        _require_temperature(self.temperature)
        if self.top_k is not None:
            positive_int("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1]; got {self.top_p}.")


@dataclass(frozen=True)
class HeadSchedule:
    """K(p) = round(K(0) + p (last - K(0))) solver steps of the head, where K(0) are those of the solver (DiSA).

    The progress p in [0, 1] is the fraction of a state's tokens that are known, or the time t. Training is the same.
    """

    last: int
    over: HeadProgress = "tokens"

    def __post_init__(self) -> None:
        positive_int("The last number of head steps", self.last, MAX_SAMPLING_STEPS)
        if self.over not in get_args(HeadProgress):
            raise ValueError(f"A head schedule is over {' or '.join(get_args(HeadProgress))}; got {self.over!r}.")

    def solver(self, first: FixedStep, known: float, t: float) -> FixedStep:
        """The solver of this progress, of the type of the `first`."""
        start, progress = len(first.grid) - 1, known if self.over == "tokens" else t
        steps = round(start + progress * (self.last - start))
        return first if steps == start else _solver(type(first), steps)


@lru_cache(maxsize=MAX_SAMPLING_STEPS)
def _solver(kind: type[FixedStep], steps: int) -> FixedStep:
    return kind(steps)


@dataclass(frozen=True)
class SamplingParams:
    """How to sample from a kernel. Each kernel reads the options that apply to it."""

    solver: Solver = Euler(4)
    guidance: Guidance = NoGuidance()
    unmasking: Unmasking = Unmasking()
    codes: CodeSampling = CodeSampling()
    head_schedule: HeadSchedule | None = None

    def at(self, known: float, t: float) -> Self:
        """The params, their solver as scheduled, for tokens sampled at time t when a fraction of them is `known`."""
        if self.head_schedule is None:
            return self
        if not isinstance(self.solver, FixedStep):
            raise ValueError(f"A head schedule needs a solver of a fixed number of steps, not {self.solver!r}.")
        return replace(self, solver=self.head_schedule.solver(self.solver, known, t), head_schedule=None)
