"""The interface of a kernel: a loss and a sample of Y given X_t."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from tmatch.condition import Condition
from tmatch.distribution.base import TokenDistribution
from tmatch.head import Head
from tmatch.parametrization import NextState, Parametrization
from tmatch.process import Process
from tmatch.rng import RandomStreams
from tmatch.sampling import Callback, SamplingParams
from tmatch.tensors import State, Time


class Kernel(nn.Module, ABC):
    """A probability model of B = Y given A = (t, X_t, condition), with a one-sample loss to train it."""

    def __init__(self, backbone: nn.Module, distribution: TokenDistribution | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.distribution = distribution

    @property
    def head(self) -> Head | None:
        """The network that each solver step evaluates, if any."""
        return None if self.distribution is None else self.distribution.head

    def fsdp_modules(self) -> list[nn.Module]:
        """The modules that run one after the other, each of which FSDP shards and gathers separately."""
        return [*getattr(self.backbone, "blocks", ()), *([] if self.head is None else [self.head])]

    @abstractmethod
    def loss(self, y: State, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams) -> Tensor:
        """D(Y, p(. | X_t)) of Eq. 7, one value per image."""

    @abstractmethod
    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> State:  # fmt: skip
        """Y ~ p(. | X_t) at one time t for the whole batch; if Y is the next state, it is the state at t_next.

        Kernels that sample tokens in turn report partial states to the `callback`.
        """

    def check(self, process: Process, parametrization: Parametrization) -> None:
        """Raise if this kernel cannot learn the pair, with a message that says what to use instead."""


class MeanPredictor(Kernel):
    """A kernel that predicts E[Y | X_t], and may model the residual Y - E[Y | X_t] beside it."""

    @abstractmethod
    def guided_mean(self, x_t: State, t: Time, condition: Condition | None, params: SamplingParams) -> State:
        """E[Y | X_t], with guidance."""

    @abstractmethod
    def mean_and_residual(
        self, x_t: State, t: Time, condition: Condition | None, rng: RandomStreams, params: SamplingParams
    ) -> tuple[State, State | float]:
        """The guided mean, and a sample of the residual, from one evaluation of the backbone."""

    def sample(
        self, x_t: State, t: Time, t_next: Time, condition: Condition | None, rng: RandomStreams,
        params: SamplingParams, callback: Callback | None = None,
    ) -> State:  # fmt: skip
        mean, residual = self.mean_and_residual(x_t, t, condition, rng, params)
        return mean + residual


class SequentialKernel(Kernel):
    """A kernel that samples some tokens before others.

    On a process that keeps one X_0 it would learn to read X_{t+1} off X_t; `dependent` allows that, for an ablation.
    """

    distribution: TokenDistribution

    def __init__(self, backbone: nn.Module, distribution: TokenDistribution, dependent: bool = False) -> None:
        super().__init__(backbone, distribution)
        if distribution.head is not None and distribution.head.joint:
            raise ValueError(
                f"{type(distribution.head).__name__} is a joint head, which needs all tokens of an image at once; "
                f"{type(self).__name__} needs a per-token head."
            )
        self.dependent = dependent

    def check(self, process: Process, parametrization: Parametrization) -> None:
        if process.noise_kept == "all" and isinstance(parametrization, NextState) and not self.dependent:
            raise ValueError(
                f"{type(self).__name__} on {type(process).__name__}, which keeps X_0, fails when sampling; use "
                "IndependentLinearProcess, or pass dependent=True for the paper's ablation."
            )
