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


def reject_joint(name: str, distribution: TokenDistribution) -> None:
    """Raise if the head attends across tokens, which a kernel that samples some tokens before others cannot use."""
    if distribution.head is not None and distribution.head.joint:
        raise ValueError(
            f"{name} samples tokens in turn, but {type(distribution.head).__name__} is a joint head, which needs all "
            "tokens of an image at once; use a per-token head, or a parallel kernel (dtm)."
        )


def require_independent(name: str, process: Process, parametrization: Parametrization, dependent: bool) -> None:
    """Raise on a process that keeps its noise, unless the caller asks for that ablation."""
    if process.noise_kept == "all" and isinstance(parametrization, NextState) and not dependent:
        raise ValueError(
            f"{name} on {type(process).__name__}, which keeps X_0, learns to read X_{{t+1}} off X_t and fails when "
            "sampling; use IndependentLinearProcess, or pass dependent=True for the paper's ablation."
        )
