"""What backbones and heads share: times and positions as vectors, AdaLN, and initialisation."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

from tmatch.tensors import Time, autocast_kind


def sinusoids(x: Tensor, width: int, longest: float) -> Tensor:
    """cos and sin of x at `width / 2` frequencies, periods from 2 pi to 2 pi `longest`: (..., width)."""
    half = width // 2
    rates = torch.exp(-math.log(longest) * torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = x.float().unsqueeze(-1) * rates
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class TimeEmbedding(nn.Module):
    """A time in [0, 1] as a vector, by sinusoids and an MLP."""

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
    """`parts` modulations of the same width, from a time: (..., parts * width)."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.embedding = TimeEmbedding(width)
        self.linear = nn.Linear(width, parts * width)

    def forward(self, t: Time) -> Tensor:
        return self.linear(silu(self.embedding(t)))


def require_time(network: nn.Module | None, t: Time | None) -> None:
    """A time is read exactly if there is a network to read it."""
    if (network is None) != (t is None):
        raise ValueError("A network that is `timed` is called with a time t, and one that is not with t = None.")


def require_channels(x: Tensor, channels: int) -> None:
    """Refuse tokens (..., channels) of another width."""
    if x.shape[-1] != channels:
        raise ValueError(f"This backbone reads tokens of {channels} channels; got {x.shape[-1]}.")


class PositionEmbedding(nn.Module):
    """Positions (step, row, column) as vectors: sinusoids of each axis, then a linear; any size, square or not."""

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
    """(step, row, column) of every token of a grid in reading order; a sequence is one row: (tokens, 3)."""
    if not 1 <= len(grid) <= 2:
        raise ValueError(f"Tokens lie on a line or in rows and columns; got a grid of {tuple(grid)}.")
    rows, columns = (1, *grid)[-2:]
    axes = [torch.arange(n, device=device) for n in (rows, columns)]
    places = torch.cartesian_prod(*axes)
    return torch.cat((torch.full_like(places[:, :1], step), places), dim=-1)


def upcast_residual(x: Tensor) -> Tensor:
    """What blocks add to: float32 under autocast, where products alone are to be coarser, whatever weights are."""
    return x.float() if torch.is_autocast_enabled(autocast_kind(x.device)) else x


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """AdaLN: x scale + shift; the scale is about 1."""
    return torch.addcmul(shift, x, scale)


def gated(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """What a block adds to its input: x + gate y."""
    return torch.addcmul(x, gate, y)


class GELU(nn.Module):
    """x (1 + tanh z) / 2 = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3).

    PyTorch has one kernel for it. Where a compiler makes one, the sigmoid takes half the time of the tanh on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return gelu(x, approximate="tanh")
        rate = math.sqrt(8 / math.pi)
        return x * torch.sigmoid(x * (rate + 0.044715 * rate * x * x))


class LayerNorm(nn.LayerNorm):
    """PyTorch's, in the precision of x: weights are coarser where FSDP2 gathers them so."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class RMSNorm(nn.RMSNorm):
    """x w / sqrt(mean(x^2) + eps). PyTorch has one kernel for it on a GPU, and eight calls on a CPU; here are five."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__(width, eps)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.least = nn.Buffer(torch.tensor(self.eps, device=self.weight.device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cpu or x.dtype != torch.float32:
            return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.addcmul(self.least, length, length, value=1 / x.shape[-1]).rsqrt()
        return x * inverse * self.weight


def initialise(network: nn.Module, *zeros: nn.Linear) -> None:
    """Xavier weights and zero biases for every linear layer, and nothing but zeros for those named."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    for layer in zeros:
        nn.init.zeros_(layer.weight)
