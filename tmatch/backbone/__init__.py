"""The large network f that reads the state; any module with a `width` and this call will do."""

from typing import Protocol

from torch import Tensor

from tmatch.backbone.dit import DiT
from tmatch.backbone.mlp import MLP
from tmatch.condition import Condition
from tmatch.layers import grid_positions
from tmatch.tensors import State, Time


class Backbone(Protocol):
    """h = f_t(x_t): a vector of `width` numbers for each token of the state."""

    width: int

    def __call__(self, x: State, t: Time, condition: Condition | None = None) -> Tensor:
        """Read x (batch, *grid, channels) at t (batch,); answer (batch, *grid, width)."""


__all__ = ["MLP", "Backbone", "DiT", "grid_positions"]
