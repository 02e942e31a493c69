"""Attention to a condition."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tmatch.backbone.attention import by_head
from tmatch.condition import Condition
from tmatch.layers import RMSNorm

HIDDEN = -1e4
"""The score of padding: none of it is seen, and where all is padding no score is infinite."""


class Keys(NamedTuple):
    """Keys and values by head, (batch, heads, length, width / heads), and which are no padding, (batch, length)."""

    k: Tensor
    v: Tensor
    mask: Tensor


class FoldedKeys(NamedTuple):
    """Keys W_q^T k (batch, width, heads length), values W_o v (batch, heads length, width), and a bias of scores."""

    k: Tensor
    v: Tensor
    bias: Tensor


class CrossAttention(nn.Module):
    """Attention from tokens to a condition; its keys and values are computed once, by `keys`.

    A condition of few vectors takes in the two projections that every token would go through: (W_q x) k = x (W_q^T k)
    and W_o (p v) = p (W_o v). Keys and values are then as wide as the tokens, one a head, but a caption is short.
    """

    def __init__(self, width: int, heads: int, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.q_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.out = nn.Linear(width, width)

    def keys(self, condition: Condition, tokens: int) -> Keys | FoldedKeys:
        """What does not depend on the tokens, of which `tokens` an image will ask."""
        k, v = by_head(self.kv(condition.tokens), self.heads, parts=2)
        if self.folds(condition.tokens.shape[1], tokens):
            return self._folded(k, v, condition.mask)
        return Keys(self.k_norm(k), v, condition.mask)

    def folds(self, length: int, tokens: int) -> bool:
        """Whether folding saves a third of the products at least, and nothing stands between them.

        RMSNorm does, and so does whatever took the place of a linear layer, such as LoRA.
        """
        width = self.q.in_features
        apart = tokens * (width + length)
        folded = tokens * self.heads * length + width * length
        plain = all(type(layer) is nn.Linear for layer in (self.q, self.out))
        return plain and isinstance(self.q_norm, nn.Identity) and 3 * folded < 2 * apart

    def _folded(self, k: Tensor, v: Tensor, mask: Tensor) -> FoldedKeys:
        heads, width = self.heads, self.q.in_features
        k = k * (width // heads) ** -0.5
        v = v * mask[:, None, :, None]
        w_q, w_o = self.q.weight.view(heads, -1, width), self.out.weight.view(width, heads, -1)
        folded_k = torch.einsum("bhle,hed->bhld", k, w_q).flatten(1, 2)
        folded_v = torch.einsum("bhle,dhe->bhld", v, w_o).flatten(1, 2)
        bias = torch.einsum("bhle,he->bhl", k, self.q.bias.view(heads, -1)).masked_fill(~mask[:, None], HIDDEN)
        return FoldedKeys(folded_k.mT, folded_v, bias.flatten(1)[:, None])

    def forward(self, x: Tensor, keys: Keys | FoldedKeys) -> Tensor:
        """Tokens x (batch, tokens, width)."""
        if isinstance(keys, FoldedKeys):
            scores = torch.baddbmm(keys.bias, x, keys.k).unflatten(-1, (self.heads, -1))
            return torch.baddbmm(self.out.bias, scores.softmax(-1).flatten(2), keys.v)
        (q,) = by_head(self.q(x), self.heads, parts=1)
        y = scaled_dot_product_attention(self.q_norm(q), keys.k, keys.v, attn_mask=keys.mask[:, None, None, :])
        return self.out(y.transpose(1, 2).flatten(2))
