"""The law of a token given the backbone's output: continuous (`Flow`) or a code (`Categorical`)."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from tmatch.guidance import Branches
from tmatch.head import TimeCache
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams
from tmatch.tensors import Time


def require_contexts(h: Tensor, b: Tensor) -> None:
    """Refuse what is not one vector h for each token B, before broadcasting makes something of it."""
    if h.shape[:-1] != b.shape[:-1]:
        raise ValueError(
            f"The backbone gives vectors for {tuple(h.shape[:-1])} tokens (batch, *grid), and there are "
            f"{tuple(b.shape[:-1])}: it is to give one for each."
        )


class TokenDistribution(nn.Module, ABC):
    """p(B | h) for a token B: every kernel that draws tokens from a backbone's output rests on one."""

    continuous: ClassVar[bool] = True
    """Whether noise is a token too, if not a likely one."""
    channels: int
    """Numbers in a token."""
    head: nn.Module | None
    """The network called at every solver step, where there is one."""

    def require(self, b: Tensor) -> None:
        """Refuse data that this law is not one of."""
        self.require_width(b)

    def require_width(self, b: Tensor) -> None:
        """Refuse tokens (..., channels) of another width."""
        if b.shape[-1] != self.channels:
            raise ValueError(f"This model draws {self.channels} numbers a token, and here tokens have {b.shape[-1]}.")

    def embed(self, b: Tensor) -> Tensor:
        """Tokens as the backbone reads them."""
        return b

    @abstractmethod
    def loss(self, b: Tensor, h: Tensor, t: Time | None, rng: RandomStreams) -> Tensor:
        """What to descend on, one value a token, (batch, *tokens)."""

    @abstractmethod
    def start(self, rng: RandomStreams, *tokens: int) -> Tensor:
        """The random numbers that tokens are drawn with, (batch, *tokens, ...): those of many may be made at once."""

    @abstractmethod
    def forward(
        self,
        start: Tensor,
        h: Tensor,
        t: Time | None,
        params: SamplingParams,
        branches: Branches,
        time_cache: TimeCache | None = None,
    ) -> Tensor:
        """B ~ p(. | h); h and t hold every branch of the guidance, the clock what tokens at one t have in common."""

    def sample(
        self, h: Tensor, t: Time | None, rng: RandomStreams, params: SamplingParams, branches: Branches
    ) -> Tensor:
        """B ~ p(. | h), all tokens of h at once."""
        return self(self.start(rng, *h.shape[1:-1]), h, t, params, branches)
