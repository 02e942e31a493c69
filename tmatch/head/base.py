"""The contract: a velocity over tokens."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from tmatch.tensors import Time

TimeCache = dict[float, Any]
"""What a head keeps for each s while tokens are drawn one after the other at one t."""


class Head(nn.Module, ABC):
    """A velocity g_{s,t}(y_s, h) over tokens, in two parts: what depends on s, and what does not."""

    channels: int
    """Numbers in a token."""

    @abstractmethod
    def prepare(self, h: Tensor, t: Time | None, time_cache: TimeCache | None = None) -> Any:  # noqa: ANN401
        """What is the same at every s: h (batch, ..., width) and, for kernels that have one, t (batch,).

        Kernels that sample many tokens at one t pass a `time_cache`: keep in it what depends on s and t alone.
        """

    @abstractmethod
    def forward(self, y_s: Tensor, s: Time, context: Any) -> Tensor:  # noqa: ANN401
        """The velocity at (s, y_s), for y_s (batch, ..., channels); s is one number, or one a token (batch, ...)."""
