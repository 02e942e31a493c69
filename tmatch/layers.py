"""Layers shared by backbones and heads: time and position embeddings, AdaLN, norms, initialization."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

from tmatch.tensors import Time, autocast_kind


def sinusoids(x: Tensor, width: int, max_period: float) -> Tensor:
    """cos and sin of x at `width / 2` frequencies, periods from 2 pi to 2 pi `max_period`: (..., width)."""
    half = width // 2
    rates = torch.exp(-math.log(max_period) * torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = x.float().unsqueeze(-1) * rates
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class TimeEmbedding(nn.Module):
    """An embedding of a time in [0, 1]: sinusoids and an MLP."""

    def __init__(self, width: int, frequencies: int = 256) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.linear_1 = nn.Linear(frequencies, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, t: Time) -> Tensor:
        weight = self.linear_1.weight
        features = sinusoids(1000 * t.float().to(weight.device), self.frequencies, 10_000).to(weight.dtype)
        return self.linear_2(silu(self.linear_1(features)))


class TimeModulation(nn.Module):
    """`parts` modulations of equal width."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.embedding = TimeEmbedding(width)
        self.linear = nn.Linear(width, parts * width)

    def forward(self, t: Time) -> Tensor:
        return self.linear(silu(self.embedding(t)))


def require_time(network: nn.Module | None, t: Time | None) -> None:
    """Raise unless a time is given exactly if the network reads one."""
    if (network is None) != (t is None):
        raise ValueError("A `timed` network needs a time t; an untimed one needs t = None.")


def require_channels(x: Tensor, channels: int) -> None:
    """Raise unless tokens (..., channels) have that many channels."""
    if x.shape[-1] != channels:
        raise ValueError(
            f"This backbone reads tokens of {channels} channels, channels last; got {tuple(x.shape)}. "
            "Encode images (NCHW) with a codec, such as Patchify."
        )


class PositionEmbedding(nn.Module):
    """Embeddings of positions (step, row, column): sinusoids of each axis, then a linear layer; for any grid size."""

    axes = 3

    def __init__(self, width: int, frequencies: int = 64) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.linear = nn.Linear(self.axes * frequencies, width)

    def forward(self, positions: Tensor) -> Tensor:
        """(..., tokens, 3) -> (..., tokens, width)."""
        features = sinusoids(positions, self.frequencies, 100).flatten(-2)
        return self.linear(features.to(self.linear.weight.dtype))


def grid_positions(grid: Sequence[int], step: int = 0, device: torch.device | None = None) -> Tensor:
    """(step, row, column) of every token of a grid in raster order, (tokens, 3); a sequence is one row."""
    if not 1 <= len(grid) <= 2:
        raise ValueError(f"A token grid has one or two dimensions; got {tuple(grid)}.")
    rows, columns = (1, *grid)[-2:]
    axes = [torch.arange(n, device=device) for n in (rows, columns)]
    positions = torch.cartesian_prod(*axes)
    return torch.cat((torch.full_like(positions[:, :1], step), positions), dim=-1)


def upcast_residual(x: Tensor) -> Tensor:
    """The residual stream: in float32 under autocast, which lowers the precision of matrix products only."""
    return x.float() if torch.is_autocast_enabled(autocast_kind(x.device)) else x


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """AdaLN: x scale + shift, with a scale around 1."""
    return torch.addcmul(shift, x, scale)


def gated(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """A gated residual connection: x + gate y."""
    return torch.addcmul(x, gate, y)


class GELU(nn.Module):
    """x (1 + tanh z) / 2 = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3).

    Eager mode uses PyTorch's fused kernel. Compiled, the sigmoid takes half the time of the tanh on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return gelu(x, approximate="tanh")
        rate = math.sqrt(8 / math.pi)
        return x * torch.sigmoid(x * (rate + 0.044715 * rate * x * x))


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm in the dtype of x, since FSDP2 may gather weights in a lower precision."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class RMSNorm(nn.RMSNorm):
    """nn.RMSNorm in the dtype of x, as above."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__(width, eps)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def initialise(network: nn.Module, *zeros: nn.Linear) -> None:
    """Xavier weights and zero biases for every linear layer, and zero weights for those in `zeros`."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    for layer in zeros:
        nn.init.zeros_(layer.weight)
