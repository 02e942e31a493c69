"""A backbone for points and other small data."""

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn
from torch.nn.functional import silu

from tmatch.condition import Condition
from tmatch.layers import TimeEmbedding
from tmatch.tensors import State, Time, require_shape


class MLP(nn.Module):
    """h = f_t(x_t) by an MLP on the whole state: for points, not for images."""

    def __init__(self, grid: Sequence[int], channels: int, width: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.grid = tuple(grid)
        self.channels = channels
        self.width = width
        tokens = prod(self.grid)
        self.x_in = nn.Linear(tokens * channels, width)
        self.t_in = TimeEmbedding(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, tokens * width)

    def forward(self, x: State, t: Time, condition: Condition | None = None) -> Tensor:
        """One vector per token, (batch, *grid, width)."""
        if condition is not None:
            raise ValueError("The MLP backbone takes no condition; use a DiT.")
        require_shape("The state", x, (*self.grid, self.channels))
        h = self.x_in(x.flatten(1).to(self.x_in.weight.dtype)) + self.t_in(t)
        for layer in self.layers:
            h = h + layer(silu(h))
        return self.out(silu(h)).unflatten(1, (*self.grid, self.width))
