"""A language-model backbone: text as a prefix, causal attention, no time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from tmatch.backbone.attention import AttentionMask, SelfAttention, angles, attention_mask
from tmatch.backbone.cache import LayerKVCache, position_ids, read_condition, sequence_mask
from tmatch.condition import Condition
from tmatch.layers import RMSNorm, initialise, require_channels, upcast_residual
from tmatch.tensors import State, Time, positive_int


class LlamaBlock(nn.Module):
    """Self-attention and SwiGLU, each after an RMSNorm."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(width)
        self.attention = SelfAttention(width, heads, bias=False)
        self.mlp_norm = RMSNorm(width)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: Tensor, attention_mask: AttentionMask, rotation: tuple[Tensor, Tensor],
        kv_cache: LayerKVCache | None = None,
    ) -> Tensor:  # fmt: skip
        x = x + self.attention(self.attention_norm(x), attention_mask, kv_cache, rotation)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(silu(gate) * up)


@dataclass
class LlamaContext:
    """A sequence [text, tokens]: its padding mask, its rotary positions, and KV caches while decoding."""

    text: int  # length of the prefix
    valid: Tensor | None  # (batch, text + tokens), False on the padding of the text; None without padding
    rotation: tuple[Tensor, Tensor]
    kv_caches: list[LayerKVCache] = field(default_factory=list)

    @property
    def read(self) -> int:
        """Positions of the sequence in the KV caches."""
        return self.kv_caches[0].filled if self.kv_caches else 0

    @property
    def filled(self) -> int:
        return self.read - self.text


class Llama(nn.Module):
    """h = f(x): a Llama-like decoder over [text, tokens] with rotary positions, without time.

    Padding of the text takes no position, so that an image does not depend on its batch. `checkpointing` recomputes
    each block in the backward pass. The paper uses Llama(16, width=2048, depth=34, heads=16, condition_width=4096).
    """

    timed = False

    def __init__(
        self, channels: int, width: int, depth: int, heads: int, condition_width: int | None = None,
        hidden: int | None = None, checkpointing: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, size in {"width": width, "depth": depth, "heads": heads}.items():
            positive_int(name, size)
        if width % (2 * heads):
            raise ValueError(f"The heads of a Llama must have an even width; got width {width} and {heads} heads.")
        self.channels = channels
        self.width = width
        self.heads = heads
        self.checkpointing = checkpointing
        self.x_in = nn.Linear(channels, width)
        self.condition_in = None if condition_width is None else nn.Linear(condition_width, width)
        hidden = -(-width // 3) * 8 if hidden is None else hidden  # a multiple of 8, for GPU efficiency
        blocks = [LlamaBlock(width, heads, hidden) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.out_norm = RMSNorm(width)
        # Every block starts as the identity.
        initialise(self, *(part for block in blocks for part in (block.attention.out, block.down)))

    def forward(
        self, x: State, t: Time | None = None, condition: Condition | None = None, *, positions: Tensor | None = None,
        prefix: int | None = None, cache: LlamaContext | None = None,
    ) -> Tensor:  # fmt: skip
        """One vector per token, (batch, *grid, width), in raster order; `positions` are ignored."""
        require_causal(t, prefix)
        require_channels(x, self.channels)
        grid = x.shape[1:-1]
        tokens = self.x_in(x.flatten(1, -2).to(self.x_in.weight.dtype))
        if cache is None:
            h = self._full_pass(read_condition(self.condition_in, condition, len(x)), tokens)
        else:
            h = self._run(tokens, cache)
        return h.unflatten(1, grid)

    def init_cache(self, t: Time | None, condition: Condition | None, batch: int, length: int) -> LlamaContext:
        """A cache for decoding `length` tokens after the text, which it has read."""
        require_causal(t, 0)
        text = read_condition(self.condition_in, condition, batch)
        context = self._context(text, batch, length)
        if context.valid is not None and not context.valid.is_meta and bool(context.valid.all()):
            context.valid = None
        size = (batch, self.heads, context.text + length, self.width // self.heads)
        context.kv_caches = [LayerKVCache(*size, self.x_in.weight) for _ in self.blocks]
        if text is not None:
            self._run(text.tokens, context)
        return context

    def _context(self, text: Condition | None, batch: int, length: int) -> LlamaContext:
        weight = self.x_in.weight
        valid = sequence_mask(text, batch, length, weight.device)
        cosines, sines = angles(position_ids(valid), self.width // self.heads)
        rotation = (cosines.to(weight.dtype), sines.to(weight.dtype))
        return LlamaContext(valid.shape[1] - length, None if text is None else valid, rotation)

    def _full_pass(self, text: Condition | None, tokens: Tensor) -> Tensor:
        """All tokens in one pass, with the padding of the text moved to the end, where causal attention hides it."""
        if text is None:
            return self._run(tokens, self._context(None, 1, tokens.shape[1]))
        valid = sequence_mask(text, len(tokens), tokens.shape[1], tokens.device)
        order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)
        sequence = _at(torch.cat((text.tokens, tokens), dim=1), order)
        h = self._run(sequence, self._context(None, 1, sequence.shape[1]))
        return _at(h, position_ids(valid)[:, text.tokens.shape[1] :])

    def _run(self, tokens: Tensor, context: LlamaContext) -> Tensor:
        """The blocks, on the next tokens of a sequence."""
        tokens, start, new = upcast_residual(tokens), context.read, tokens.shape[1]
        if context.valid is None:
            seen = attention_mask(new, 0, start, tokens.device)
        else:
            seen = AttentionMask(_unpadded(context.valid[:, : start + new], start))
        cosines, sines = (part.narrow(2, start, new) for part in context.rotation)
        caches: Sequence[LayerKVCache | None] = context.kv_caches or [None] * len(self.blocks)
        for block, kv_cache in zip(self.blocks, caches, strict=True):
            if self.checkpointing and kv_cache is None and torch.is_grad_enabled():
                tokens = checkpoint(block, tokens, seen, (cosines, sines), use_reentrant=False)
            else:
                tokens = block(tokens, seen, (cosines, sines), kv_cache)
        return self.out_norm(tokens)


def _at(x: Tensor, order: Tensor) -> Tensor:
    """The vectors of x (batch, n, width) at indices (batch, m); `take_along_dim` would save a full-size index."""
    return x.gather(1, order[..., None].expand(-1, -1, x.shape[-1]))


def _unpadded(valid: Tensor, start: int) -> Tensor:
    """The mask of the tokens from `start` on, (batch, 1, new, all): causal, without padding."""
    index = torch.arange(valid.shape[1], device=valid.device)
    behind = index[start:, None] - index
    return ((behind >= 0) & valid[:, None, None, :]) | (behind == 0)


def require_causal(t: Time | None, prefix: int | None) -> None:
    """Raise on a time or on non-causal attention."""
    if t is not None:
        raise ValueError("A Llama reads no time; use it for full-history variants (FHTM), or use a DiT.")
    if prefix != 0:
        raise ValueError("A Llama is fully causal and supports no bidirectional prefix; use a DiT.")
