"""The interface of a head: a velocity over tokens."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from tmatch.tensors import Time

TimeCache = dict[float, Any]
"""What a head has computed for each s, while a kernel samples token after token at one t."""


class Head(nn.Module, ABC):
    """A velocity g_{s,t}(y_s, h) over tokens, split into what depends on s and what does not.

    Shapes, in training and in sampling alike: B images, S samples per token, N tokens in reading order. Every head is
    built as `HEADS[kind](channels, context_width, width, depth, timed)`.
    """

    joint: ClassVar[bool] = False
    """Whether the head attends across the N tokens; training then samples one s per image instead of one per token."""
    channels: int
    """Numbers in a token."""

    @abstractmethod
    def prepare(self, h: Tensor, t: Time | None, cache: TimeCache | None = None) -> Any:  # noqa: ANN401
        """Compute what is the same at every s, from h (B, 1, N, W) and t (B,), None if the kernel has no time.

        Kernels that sample many tokens at one t pass a `cache` for what depends on s and t alone.
        """

    @abstractmethod
    def forward(self, y: Tensor, s: Time, context: Any, r: Time | None = None) -> Tensor:  # noqa: ANN401
        """Return the velocity at (s, y) for y (B, S, N, C); s is (), or (B, S) if `joint`, or else (B, S, N).

        Flow maps also pass r, with the shape of s: the velocity is then the average one between s and r.
        """
