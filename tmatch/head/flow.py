"""The flow head of the paper: an MLP on each token."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import silu

from tmatch.head.base import Head, TimeCache
from tmatch.layers import TimeEmbedding, gated, initialise, modulate, require_time
from tmatch.tensors import Time, expand_like


@dataclass(frozen=True)
class HeadContext:
    """What the head knows besides y_s and s: the same at every solver step."""

    h: Tensor  # (B, 1, N, width)
    time: Tensor | None  # (B, 1, 1, width)
    modulations: list[Tensor]  # one per block, (B, 1, N, 3 width)
    cache: TimeCache | None = None


class HeadBlock(nn.Module):
    """x + gate * MLP(scale * norm(x) + shift), with (shift, scale, gate) from h and from the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        shift, scale, gate = modulation.chunk(3, dim=-1)
        return gated(x, gate, self.mlp(modulate(self.norm(x), shift, scale)))


class FlowHead(Head):
    """u_s(y | h) = g_{s,t}(y, h): an MLP on each token separately, with AdaLN (Eq. 13).

    Each block adds its own linear function of h to one of (s, t) that all blocks share. Only the second depends on s,
    so `prepare` computes the first once per transition and the solver's loop runs the MLP alone. A head that is not
    `timed` takes no t, for kernels whose context determines the step. It does not read r.
    """

    def __init__(
        self, channels: int, context_width: int, width: int = 1024, depth: int = 6, timed: bool = True
    ) -> None:
        super().__init__()
        self.channels = channels
        self.y_in = nn.Linear(channels, width)
        self.h_in = nn.Linear(context_width, width)
        self.s_in = TimeEmbedding(width)
        self.t_in = TimeEmbedding(width) if timed else None
        self.time_modulation = nn.Linear(width, 3 * width)
        h_modulations = [nn.Linear(width, 3 * width) for _ in range(depth)]
        self.h_modulations = nn.ModuleList(h_modulations)
        self.blocks = nn.ModuleList(HeadBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.out_modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, channels)
        initialise(self, self.time_modulation, self.out_modulation, self.out, *h_modulations)

    def prepare(self, h: Tensor, t: Time | None, cache: TimeCache | None = None) -> HeadContext:
        require_time(self.t_in, t)
        h = self.h_in(h.to(self.h_in.weight.dtype))
        signal = silu(h)
        modulations = [linear(signal) for linear in self.h_modulations]
        time = None if self.t_in is None or t is None else self.t_in(expand_like(t, h[..., 0]))
        return HeadContext(h, time, modulations, cache)

    def forward(self, y: Tensor, s: Time, context: HeadContext, r: Time | None = None) -> Tensor:
        shared, shift, scale = self._time_modulation(s, context)
        x = self.y_in(y.to(context.h.dtype)) + context.h
        for block, modulation in zip(self.blocks, context.modulations, strict=True):
            x = block(x, modulation + shared)
        velocity = self.out(modulate(self.norm(x), shift, scale))
        return velocity.to(y.dtype)

    def _time_modulation(self, s: Time, context: HeadContext) -> tuple[Tensor, Tensor, Tensor]:
        """The part of the modulation that depends on time alone: for the blocks, and shift and scale of the output."""
        key = None if context.cache is None or s.ndim else float(s)
        if context.cache is not None and key in context.cache:
            return context.cache[key]
        time = silu(self.s_in(s) if context.time is None else self.s_in(s) + context.time)
        shared, (shift, scale) = self.time_modulation(time), self.out_modulation(time).chunk(2, dim=-1)
        shared.narrow(-1, shift.shape[-1], shift.shape[-1]).add_(1)  # the scale, here once and not in every block
        modulation = (shared, shift, 1 + scale)
        if context.cache is not None and key is not None:
            context.cache[key] = modulation
        return modulation
