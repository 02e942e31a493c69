"""Self-attention with PyTorch's fused kernel."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tmatch.backbone.cache import LayerKVCache
from tmatch.layers import RMSNorm


class AttentionMask(NamedTuple):
    """A boolean mask, True where a query may attend, or `causal`; full attention if neither is set.

    The first `prefix` queries are exempt: they attend to each other and to the past.
    """

    mask: Tensor | None = None
    causal: bool = False
    prefix: int = 0


FULL_ATTENTION = AttentionMask()


def attention_mask(new: int, prefix: int | None, past: int = 0, device: torch.device | None = None) -> AttentionMask:
    """The mask of `new` tokens after `past` ones, to which all of them attend.

    The first `prefix` attend to each other, later ones causally. Without a prefix, attention is full.
    """
    if prefix is None or prefix >= new or new == 1:
        return FULL_ATTENTION
    prefix = prefix if prefix > 1 else 0
    # A causal kernel computes the prefix needlessly, but on GPUs it still wins: a mask rules out flash attention, which
    # skips masked blocks. CPU kernels skip nothing, and masks cost them nothing.
    on_cpu = device is None or device.type == "cpu"
    if past == 0 and not (prefix and on_cpu):
        return AttentionMask(causal=True, prefix=prefix)
    before = torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past)
    return AttentionMask(before[prefix:], prefix=prefix)


def attend(q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask) -> Tensor:
    """softmax(q k / sqrt(d)) v under the mask, by head; the queries are the last of the tokens of k and v."""
    if not attention_mask.prefix:
        return scaled_dot_product_attention(q, k, v, attn_mask=attention_mask.mask, is_causal=attention_mask.causal)
    first, later = q.tensor_split([attention_mask.prefix], dim=2)
    seen = k.shape[2] - later.shape[2]
    begin = scaled_dot_product_attention(first, k[:, :, :seen], v[:, :, :seen])
    if attention_mask.causal:
        rest = scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, attention_mask.prefix :]
    else:
        rest = scaled_dot_product_attention(later, k, v, attn_mask=attention_mask.mask)
    return torch.cat((begin.transpose(1, 2), rest.transpose(1, 2)), dim=1).transpose(1, 2)  # the layout of the kernels


class SelfAttention(nn.Module):
    """Attention among the tokens of a sequence and those of the `kv_cache`, to which it appends the new ones.

    `rotation` holds the arguments of `rotate` for queries and keys.
    """

    def __init__(self, width: int, heads: int, qk_norm: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias)
        self.q_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.out = nn.Linear(width, width, bias)

    def forward(
        self, x: Tensor, attention_mask: AttentionMask = FULL_ATTENTION, kv_cache: LayerKVCache | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        q, k, v = by_head(self.qkv(x), self.heads, parts=3)
        q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotate(torch.stack((q, k)), *rotation)
        if kv_cache is not None:
            k, v = kv_cache.extend(k, v)
        return self.out(attend(q, k, v, attention_mask).transpose(1, 2).flatten(2))


def by_head(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """The parts of (batch, n, parts x width), each (batch, heads, n, width / heads)."""
    return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in x.chunk(parts, dim=-1))


def angles(positions: Tensor, width: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of rotary positions (batch, n): (batch, 1, n, width), float32."""
    rates = base ** -(torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    turns = (positions.float()[..., None] * rates)[:, None]
    cosines, sines = turns.cos(), turns.sin()
    return torch.cat((cosines, cosines), dim=-1), torch.cat((-sines, sines), dim=-1)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + d/2}) by its angle: x_i cos - x_{i + d/2} sin, and x_{i + d/2} cos + x_i sin."""
    return torch.addcmul(x * cosines, x.roll(x.shape[-1] // 2, dims=-1), sines).to(x.dtype)
