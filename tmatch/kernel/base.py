"""The contract: a loss and a sampler of Y given X_t."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.guidance import Guidance, NoGuidance
from tmatch.noise import Noise
from tmatch.parametrization import Parametrization
from tmatch.process import Process
from tmatch.solver import Euler, Solver
from tmatch.tensors import State, Time


@dataclass(frozen=True)
class Snapshot:
    """A moment of sampling: X_0 at the start, each state a transition leads to, partial ones where a kernel has them.

    `estimate` is the denoising estimate of X_T from which the transition to x_t was made.
    """

    kind: Literal["start", "transition", "partial"]
    t: float
    x_t: State
    estimate: State | None = None


@dataclass(frozen=True)
class Decoding:
    """How to draw from a kernel: choices that cost time, not weights. A kernel takes what concerns it."""

    solver: Solver = Euler(4)
    guidance: Guidance = NoGuidance()
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

    @abstractmethod
    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, noise: Noise) -> Tensor:
        """D(Y, p(. | X_t)) of Eq. 7, one value an image."""

    @abstractmethod
    def sample(self, x_t: State, t: Time, condition: Condition | None, noise: Noise, decoding: Decoding) -> State:
        """Y ~ p(. | X_t), at one time t for the whole batch."""

    def check(self, process: Process, parametrization: Parametrization) -> None:
        """Refuse a pair that this kernel cannot learn, in a sentence that says what to use instead."""
