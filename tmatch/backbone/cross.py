"""Cross-attention to a condition."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tmatch.backbone.attention import by_head
from tmatch.condition import Condition
from tmatch.layers import RMSNorm

MASKED_SCORE = -1e4  # finite, so that a condition of padding alone does not give NaN


class CrossKV(NamedTuple):
    """Keys and values by head, (batch, heads, length, width / heads), and a mask, False on padding, (batch, length)."""

    k: Tensor
    v: Tensor
    mask: Tensor


class CrossAttention(nn.Module):
    """Attention from tokens to a condition; `keys` computes its keys and values once.

    When many tokens attend to a few vectors, the query and output projections are folded into keys and values:
    (W_q x + b) k = x (W_q^T k) + b k and W_o (p v) = p (W_o v), which saves two products of width^2 per token.
    """

    def __init__(self, width: int, heads: int, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.width = width
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.q_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.out = nn.Linear(width, width)

    def keys(self, condition: Condition) -> CrossKV:
        """The keys and values, which do not depend on the tokens."""
        k, v = by_head(self.kv(condition.tokens), self.heads, parts=2)
        return CrossKV(self.k_norm(k), v, condition.mask)

    def forward(self, x: Tensor, keys: CrossKV) -> Tensor:
        """Tokens x (batch, tokens, width)."""
        if self.folds(keys.mask.shape[1], x.shape[1]):
            return self._folded(x, keys)
        (q,) = by_head(self.q(x), self.heads, parts=1)
        y = scaled_dot_product_attention(self.q_norm(q), keys.k, keys.v, attn_mask=keys.mask[:, None, None, :])
        return self.out(y.transpose(1, 2).flatten(2))

    def folds(self, length: int, tokens: int) -> bool:
        """Whether folding saves at least a third of the products, the point from which it is faster on a CPU.

        Norms, hooks and replaced linear layers, such as LoRA, rule it out.
        """
        plain = all(
            type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks
            for layer in (self.q, self.out)
        )
        separate = tokens * (self.width + length)
        folded = tokens * self.heads * length + self.width * length
        return plain and isinstance(self.q_norm, nn.Identity) and 3 * folded < 2 * separate

    def _folded(self, x: Tensor, keys: CrossKV) -> Tensor:
        heads, seen = self.heads, keys.mask[:, None, :, None]
        k, v = keys.k * seen * (self.width // heads) ** -0.5, keys.v * seen
        w_q, w_o = self.q.weight.view(heads, -1, self.width), self.out.weight.view(self.width, heads, -1)
        wide_k = torch.einsum("bhle,hed->bhld", k, w_q).flatten(1, 2)
        wide_v = torch.einsum("bhle,dhe->bhld", v, w_o).flatten(1, 2)
        bias = torch.einsum("bhle,he->bhl", k, self.q.bias.view(heads, -1))
        bias = bias.masked_fill(~keys.mask[:, None], MASKED_SCORE).flatten(1)[:, None]
        scores = torch.baddbmm(bias, x, wide_k.mT).unflatten(-1, (heads, -1))
        return torch.baddbmm(self.out.bias, scores.softmax(-1).flatten(2), wide_v)
