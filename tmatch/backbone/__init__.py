"""The large network f that reads the state: any module with a `width` and the call below."""

from typing import Protocol

from torch import Tensor

from tmatch.backbone.cache import Cache
from tmatch.backbone.dit import DiT
from tmatch.backbone.huggingface import HuggingFaceBackbone
from tmatch.backbone.llama import Llama
from tmatch.backbone.mlp import MLP
from tmatch.condition import Condition
from tmatch.layers import grid_positions
from tmatch.tensors import State, Time


class Backbone(Protocol):
    """h = f_t(x_t): one vector of `width` numbers per token of the state."""

    width: int

    def __call__(self, x: State, t: Time, condition: Condition | None = None) -> Tensor:
        """Map x (batch, *grid, channels) at t (batch,) to (batch, *grid, width)."""


class SequenceBackbone(Protocol):
    """A backbone of sequences with a KV cache, for kernels that sample token after token."""

    width: int

    def __call__(
        self, x: State, t: Time | None = None, condition: Condition | None = None, *, positions: Tensor | None = None,
        prefix: int | None = None, cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        """Read tokens at `positions` (tokens, 3); the first `prefix` attend to each other, later ones causally.

        0 is fully causal, None is full attention. Decoding runs in inference mode: do not keep tensors for training.
        """

    def init_cache(self, t: Time | None, condition: Condition | None, batch: int, length: int) -> Cache:
        """A cache for `length` tokens, which also holds t and the condition."""


__all__ = ["MLP", "Backbone", "Cache", "DiT", "HuggingFaceBackbone", "Llama", "SequenceBackbone", "grid_positions"]
