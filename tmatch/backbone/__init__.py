"""The large network f that reads the state; any module with a `width` and this call will do."""

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
    """h = f_t(x_t): a vector of `width` numbers for each token of the state."""

    width: int

    def __call__(self, x: State, t: Time, condition: Condition | None = None) -> Tensor:
        """Read x (batch, *grid, channels) at t (batch,); answer (batch, *grid, width)."""


class SequenceBackbone(Protocol):
    """What kernels that draw tokens one after the other need: a backbone of sequences, with a cache."""

    width: int

    def __call__(
        self,
        x: State,
        t: Time | None = None,
        condition: Condition | None = None,
        *,
        positions: Tensor | None = None,
        prefix: int | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Read tokens at `positions` (tokens, 3); the first `prefix` see each other, the later what is before them.

        0 is causal throughout, and None no mask at all. Decoding is in inference mode: keep no tensor made in a call
        for training later.
        """

    def init_cache(self, t: Time | None, condition: Condition | None, batch: int, length: int) -> Cache:
        """A cache with room for `length` tokens; it knows t and the condition."""


__all__ = ["MLP", "Backbone", "Cache", "DiT", "HuggingFaceBackbone", "Llama", "SequenceBackbone", "grid_positions"]
