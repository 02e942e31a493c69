"""Attention, through PyTorch's fused kernel."""

from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class SelfAttention(nn.Module):
    """Attention among the tokens of a sequence; `mask` (tokens, tokens) is True where a row may look."""

    def __init__(self, width: int, heads: int, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        y = scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, attn_mask=mask)
        return self.out(rearrange(y, "b h n d -> b n (h d)"))


class CrossAttention(nn.Module):
    """Attention from tokens to a condition; `mask` (batch, length) is False on padding."""

    def __init__(self, width: int, heads: int, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.q_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
        q = rearrange(self.q(x), "b n (h d) -> b h n d", h=self.heads)
        k, v = rearrange(self.kv(condition), "b n (two h d) -> two b h n d", two=2, h=self.heads)
        y = scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, attn_mask=mask[:, None, None, :])
        return self.out(rearrange(y, "b h n d -> b n (h d)"))
