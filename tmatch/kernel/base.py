"""The contract: a loss and a sampler of Y given X_t."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import State, Time


class Kernel(nn.Module, ABC):
    """A probability model of B = Y given A = (t, X_t, condition), with a one-sample loss to learn it."""

    backbone: nn.Module

    @property
    def head(self) -> nn.Module | None:
        """The network called at every solver step, where there is one."""
        return None

    def fsdp_modules(self) -> list[nn.Module]:
        """The parts that are computed one after the other, and gathered so where weights are spread over processes."""
        return [*getattr(self.backbone, "blocks", ()), *([] if self.head is None else [self.head])]

    @abstractmethod
    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """D(Y, p(. | X_t)) of Eq. 7, one value an image."""

    @abstractmethod
    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
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
