"""The interface of a token distribution: a loss, and a sample as a function of noise."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from tmatch.guidance import Branches
from tmatch.head import Head, TimeCache
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import Time


def require_contexts(h: Tensor, b: Tensor) -> None:
    """Raise unless there is one vector h per token B, which broadcasting would hide."""
    if h.shape[:-1] != b.shape[:-1]:
        raise ValueError(f"A backbone returns one vector per token, {tuple(b.shape[:-1])}; got {tuple(h.shape[:-1])}.")


class TokenDistribution(nn.Module, ABC):
    """p(B | h) for tokens B (B, N, channels) given the backbone's output h (B, N, width)."""

    continuous: ClassVar[bool] = True
    """Whether Gaussian noise is a valid token."""
    channels: int
    """Numbers in a token."""
    head: Head | None
    """The network that each solver step evaluates, if any."""

    def require(self, b: Tensor) -> None:
        """Raise if `b` is not data of this distribution."""
        self.require_width(b)

    def require_width(self, b: Tensor) -> None:
        """Raise unless tokens (..., channels) have the right width."""
        if b.shape[-1] != self.channels:
            raise ValueError(f"This model has {self.channels} channels per token, but the state has {b.shape[-1]}.")

    def embed(self, b: Tensor) -> Tensor:
        """Tokens as the backbone reads them."""
        return b

    @abstractmethod
    def loss(self, b: Tensor, h: Tensor, t: Time | None, rng: RandomStreams) -> Tensor:
        """The training loss of each token, (B, N)."""

    @abstractmethod
    def base_noise(self, rng: RandomStreams, tokens: int) -> Tensor:
        """The random numbers that `forward` turns into tokens, (B, N, ...)."""

    @abstractmethod
    def forward(
        self, noise: Tensor, h: Tensor, t: Time | None, params: SamplingParams, branches: Branches,
        cache: TimeCache | None = None,
    ) -> Tensor:  # fmt: skip
        """B ~ p(. | h), (B, N, channels); h and t hold every branch of the guidance, stacked along the batch.

        Kernels that sample token after token at one t pass a `cache` for what does not depend on the token.
        """

    @abstractmethod
    def nfe(self, params: SamplingParams) -> int | None:
        """Head evaluations per call of `forward`; None if the solver is adaptive and they have to be counted."""

    def sample(
        self, h: Tensor, t: Time | None, rng: RandomStreams, params: SamplingParams, branches: Branches
    ) -> Tensor:
        """B ~ p(. | h), all tokens of h (B, N, width) at once."""
        return self(self.base_noise(rng, h.shape[1]), h, t, params, branches)
