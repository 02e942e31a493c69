"""A joint head: a Transformer over the tokens of an image."""

from dataclasses import dataclass
from math import gcd

from torch import Tensor, nn
from torch.nn.functional import silu

from tmatch.backbone.dit import Block, Conditioning
from tmatch.head.base import Head, TimeCache
from tmatch.layers import (
    PositionEmbedding,
    TimeEmbedding,
    grid_positions,
    initialise,
    modulate,
    require_time,
    upcast_residual,
)
from tmatch.tensors import Time, expand_like

HEAD_WIDTH = 32
"""Numbers per attention head, if the width is divisible."""
MLP_RATIO = 2.0
"""Half that of a DiT, since the solver evaluates the head several times per transition."""


@dataclass(frozen=True)
class JointContext:
    """What the head knows besides y_s and s: the same at every solver step."""

    h: Tensor  # (B, 1, N, width), with the positions
    time: Tensor | None  # (B, 1, width)


class TransformerHead(Head):
    """u_s(y | h) = W Transformer_{s,t}(y + h + position): all tokens of an image jointly.

    The blocks are those of a DiT, modulated by s and t, which the tokens of an image share. The position of a token is
    its index, added to h since h need not tell where a token is; the number of tokens is free. A head that is not
    `timed` takes no t. It does not read r.
    """

    joint = True

    def __init__(
        self, channels: int, context_width: int, width: int = 1024, depth: int = 6, timed: bool = True
    ) -> None:
        super().__init__()
        self.channels = channels
        self.width = width
        self.y_in = nn.Linear(channels, width)
        self.h_in = nn.Linear(context_width, width)
        self.position = PositionEmbedding(width)
        self.s_in = TimeEmbedding(width)
        self.t_in = TimeEmbedding(width) if timed else None
        self.time_modulation = nn.Linear(width, 8 * width)  # six parts for the blocks, two for the output
        heads = gcd(width, max(1, width // HEAD_WIDTH))
        blocks = [Block(width, heads, MLP_RATIO, conditional=False, qk_norm=False) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.out = nn.Linear(width, channels)
        initialise(self, self.time_modulation, self.out)

    def prepare(self, h: Tensor, t: Time | None, cache: TimeCache | None = None) -> JointContext:
        require_time(self.t_in, t)
        positions = self.position(grid_positions(h.shape[2:3], device=h.device))
        time = None if self.t_in is None or t is None else self.t_in(expand_like(t, h[:, :, 0, 0]))
        return JointContext(self.h_in(h.to(self.h_in.weight.dtype)) + positions, time)

    def forward(self, y: Tensor, s: Time, context: JointContext, r: Time | None = None) -> Tensor:
        time = self.s_in(s) if context.time is None else self.s_in(s) + context.time
        modulation = self.time_modulation(silu(time)).expand(*y.shape[:2], -1).flatten(0, 1).unsqueeze(1)
        for_blocks, shift, scale = modulation.split([6 * self.width, self.width, self.width], dim=-1)
        x = upcast_residual(self.y_in(y.to(context.h.dtype)) + context.h).flatten(0, 1)
        for block in self.blocks:
            x = block(x, Conditioning(for_blocks, None))
        velocity = self.out(modulate(self.norm(x), shift, 1 + scale))
        return velocity.view_as(y).to(y.dtype)
