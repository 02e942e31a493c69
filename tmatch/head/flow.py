"""The flow head g: a small network that draws each token given the backbone's output for it."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import silu

from tmatch.head.base import Head, TimeCache
from tmatch.layers import TimeEmbedding, gated, initialise, modulate, require_time
from tmatch.tensors import Time, expand_like


@dataclass(frozen=True)
class HeadContext:
    """All that the head knows besides y_s and s; it is the same at every solver step."""

    h: Tensor  # (..., width)
    time: Tensor | None  # (..., width)
    modulations: list[Tensor]  # one a block, (..., 3 width)
    time_cache: TimeCache | None = None


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
    """u_s(y | h) = g_{s,t}(y, h): an MLP on each token by itself, with AdaLN (Eq. 13).

    Each block is modulated by a linear of h, its own, plus one of (s, t), shared between blocks. Only the second
    depends on s, so `prepare` computes the first once a transition and the solver's loop is left with the MLP.
    A head that is not `timed` takes no t, for kernels whose context tells the step.
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

    def prepare(self, h: Tensor, t: Time | None, time_cache: TimeCache | None = None) -> HeadContext:
        """What does not depend on s: h (batch, ..., context_width) and t (batch,), once a transition."""
        require_time(self.t_in, t)
        h = self.h_in(h.to(self.h_in.weight.dtype))
        signal = silu(h)
        modulations = [linear(signal) for linear in self.h_modulations]
        time = None if self.t_in is None or t is None else self.t_in(expand_like(t, h[..., 0]))
        return HeadContext(h, time, modulations, time_cache)

    def forward(self, y_s: Tensor, s: Time, context: HeadContext) -> Tensor:
        """The velocity at (s, y_s): s is one number for all tokens, or one for each."""
        shared, shift, scale = self._time_modulation(s, context)
        x = self.y_in(y_s.to(context.h.dtype)) + context.h
        for block, modulation in zip(self.blocks, context.modulations, strict=True):
            x = block(x, modulation + shared)
        velocity = self.out(modulate(self.norm(x), shift, scale))
        return velocity.to(y_s.dtype)

    def _time_modulation(self, s: Time, context: HeadContext) -> tuple[Tensor, Tensor, Tensor]:
        """What the time alone says: to the blocks, and to the output. It is looked up where the clock has it."""
        key = None if context.time_cache is None or s.ndim else float(s)
        if context.time_cache is not None and key in context.time_cache:
            return context.time_cache[key]
        time = silu(self.s_in(s) if context.time is None else self.s_in(s) + context.time)
        shared, (shift, scale) = self.time_modulation(time), self.out_modulation(time).chunk(2, dim=-1)
        shared.narrow(-1, shift.shape[-1], shift.shape[-1]).add_(1)  # to the scale, here and not in every block
        fixed_time = (shared, shift, 1 + scale)
        if context.time_cache is not None and key is not None:
            context.time_cache[key] = fixed_time
        return fixed_time
