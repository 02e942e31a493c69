"""The diffusion transformer f of the paper."""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tmatch.backbone.attention import FULL_ATTENTION, AttentionMask, SelfAttention, attention_mask
from tmatch.backbone.cache import LayerKVCache, read_condition
from tmatch.backbone.cross import CrossAttention, CrossKV
from tmatch.condition import Condition
from tmatch.layers import (
    GELU,
    LayerNorm,
    PositionEmbedding,
    TimeModulation,
    gated,
    grid_positions,
    initialise,
    modulate,
    require_channels,
    require_time,
    upcast_residual,
)
from tmatch.tensors import State, Time, positive_int


class Conditioning(NamedTuple):
    """The inputs all blocks share: the modulation (batch, 1, 6 width), and the text."""

    modulation: Tensor
    text: Condition | None


class BlockContext(NamedTuple):
    """What a block computes from it for all tokens: its own modulation, and the keys and values of the text."""

    modulation: tuple[Tensor, ...]  # shift, scale and gate of the attention and of the MLP, each (batch, 1, width)
    text: CrossKV | None


@dataclass(frozen=True)
class DiTContext:
    """The decoding state of a sequence: what all tokens share, and the KV caches."""

    blocks: list[BlockContext]
    output: tuple[Tensor, Tensor]  # shift and scale
    kv_caches: list[LayerKVCache]

    @property
    def filled(self) -> int:
        return self.kv_caches[0].filled


class Block(nn.Module):
    """Self-attention, cross-attention to the condition, MLP; modulated by the time plus learned offsets."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, conditional: bool, qk_norm: bool) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.offsets = nn.Parameter(torch.zeros(6 * width))
        self.attention_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = SelfAttention(width, heads, qk_norm)
        self.cross_norm = LayerNorm(width) if conditional else None
        self.cross = CrossAttention(width, heads, qk_norm) if conditional else None
        self.mlp_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), GELU(), nn.Linear(hidden, width))

    def context(self, given: Conditioning) -> BlockContext:
        """What does not depend on the tokens; decoding computes it once."""
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = (given.modulation + self.offsets).chunk(6, dim=-1)
        parts = (shift_1, 1 + scale_1, gate_1, shift_2, 1 + scale_2, gate_2)
        return BlockContext(parts, None if self.cross is None or given.text is None else self.cross.keys(given.text))

    def forward(
        self, x: Tensor, conditioning: Conditioning | BlockContext, attention_mask: AttentionMask = FULL_ATTENTION,
        kv_cache: LayerKVCache | None = None,
    ) -> Tensor:  # fmt: skip
        """Tokens x (batch, tokens, width)."""
        context = conditioning if isinstance(conditioning, BlockContext) else self.context(conditioning)
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = context.modulation
        x = gated(
            x, gate_1, self.attention(modulate(self.attention_norm(x), shift_1, scale_1), attention_mask, kv_cache)
        )
        if self.cross is not None and self.cross_norm is not None:
            assert context.text is not None, "read_condition has checked this"
            x = x + self.cross(self.cross_norm(x), context.text)
        return gated(x, gate_2, self.mlp(modulate(self.mlp_norm(x), shift_2, scale_2)))


class DiT(nn.Module):
    """h = f_t(x_t): a transformer over the tokens of a state.

    All blocks share one modulation by the time, as the paper's 1.7B parameters imply. Positions are (step, row, column)
    on a grid of any size. With a `condition_width`, every block attends to the condition. An untimed DiT takes t = None
    and uses the blocks' offsets alone. `checkpointing` recomputes each block in the backward pass to save memory.
    The paper uses DiT(16, width=2048, depth=24, heads=16, condition_width=4096).
    """

    def __init__(
        self, channels: int, width: int, depth: int, heads: int, condition_width: int | None = None,
        mlp_ratio: float = 4.0, qk_norm: bool = False, timed: bool = True, checkpointing: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, size in {"width": width, "depth": depth, "heads": heads}.items():
            positive_int(name, size)
        if width % heads:
            raise ValueError(f"The width of a DiT must be divisible by its heads; got width {width} and {heads} heads.")
        self.channels = channels
        self.width = width
        self.heads = heads
        self.timed = timed
        self.checkpointing = checkpointing
        self.x_in = nn.Linear(channels, width)
        self.position = PositionEmbedding(width)
        self.time = TimeModulation(width, 6 + 2) if timed else None  # six parts for the blocks, two for the output
        self.condition_in = None if condition_width is None else nn.Linear(condition_width, width)
        conditional = condition_width is not None
        blocks = [Block(width, heads, mlp_ratio, conditional, qk_norm) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.out_norm = nn.LayerNorm(width, elementwise_affine=False)
        # Every block starts as the identity: gates and what cross-attention adds are zero.
        cross = (block.cross.out for block in blocks if block.cross is not None)
        initialise(self, *cross, *([] if self.time is None else [self.time.linear]))

    def forward(
        self, x: State, t: Time | None = None, condition: Condition | None = None, *, positions: Tensor | None = None,
        prefix: int | None = None, cache: DiTContext | None = None,
    ) -> Tensor:  # fmt: skip
        """One vector per token, (batch, *grid, width).

        `positions`, (tokens, 3) or (batch, tokens, 3), and `prefix` serve sequences of several states: the first
        `prefix` tokens attend to each other, later ones causally. With a `cache`, which holds t and the condition, x
        are the tokens after those in it.
        """
        require_channels(x, self.channels)
        grid = x.shape[1:-1]
        if positions is None:
            positions = grid_positions(grid, device=x.device)
        tokens = upcast_residual(self.x_in(x.flatten(1, -2).to(self.x_in.weight.dtype)) + self.position(positions))
        seen = attention_mask(tokens.shape[1], prefix, 0 if cache is None else cache.filled, x.device)
        if cache is not None:
            for block, context, kv_cache in zip(self.blocks, cache.blocks, cache.kv_caches, strict=True):
                tokens = block(tokens, context, seen, kv_cache)
            return modulate(self.out_norm(tokens), *cache.output).unflatten(1, grid)
        given, output = self._given(t, condition, len(x))
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                tokens = checkpoint(block, tokens, given, seen, use_reentrant=False)
            else:
                tokens = block(tokens, given, seen)
        return modulate(self.out_norm(tokens), *output).unflatten(1, grid)

    def init_cache(self, t: Time | None, condition: Condition | None, batch: int, length: int) -> DiTContext:
        """A cache for decoding `length` tokens, with t and the condition."""
        given, output = self._given(t, condition, batch)
        blocks = [cast("Block", block).context(given) for block in self.blocks]
        size = (batch, self.heads, length, self.width // self.heads)
        return DiTContext(blocks, output, [LayerKVCache(*size, self.x_in.weight) for _ in blocks])

    def _given(
        self, t: Time | None, condition: Condition | None, batch: int
    ) -> tuple[Conditioning, tuple[Tensor, Tensor]]:
        """The inputs all blocks share, and the shift and scale of the output."""
        text = read_condition(self.condition_in, condition, batch)
        require_time(self.time, t)
        shared = self.x_in.weight.new_zeros(1, 1, 8 * self.width) if self.time is None else self.time(t)[:, None]
        for_blocks, for_output = shared.tensor_split([6 * self.width], dim=-1)
        shift, scale = for_output.chunk(2, dim=-1)
        return Conditioning(for_blocks, text), (shift, 1 + scale)
