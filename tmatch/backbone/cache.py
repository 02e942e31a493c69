"""KV caches for token-by-token decoding."""

from typing import Protocol

import torch
from torch import Tensor

from tmatch.tensors import autocast_kind


class LayerKVCache:
    """The keys and values of one layer, (batch, heads, length, width), allocated once.

    Under autocast they are stored in its dtype, so that attention does not cast them for each token.
    """

    def __init__(self, batch: int, heads: int, length: int, width: int, like: Tensor) -> None:
        kind = autocast_kind(like.device)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
        self.keys, self.values = (like.new_empty(batch, heads, length, width, dtype=dtype) for _ in range(2))
        self.filled = 0

    @property
    def length(self) -> int:
        """The capacity in tokens."""
        return self.keys.shape[2]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens; returns views of all so far."""
        new = k.shape[2]
        self.keys.narrow(2, self.filled, new).copy_(k)
        self.values.narrow(2, self.filled, new).copy_(v)
        self.filled += new
        return self.keys.narrow(2, 0, self.filled), self.values.narrow(2, 0, self.filled)


def require_capacity(tokens: Tensor, batch: int, length: int, filled: int) -> None:
    """Raise if tokens (batch, new, width) do not fit into a cache, not counting its text prefix."""
    if len(tokens) != batch:
        raise ValueError(f"The cache has batch size {batch}; got {len(tokens)}.")
    new = tokens.shape[1]
    if filled + new > length:
        raise ValueError(
            f"The cache has room for {length} tokens and holds {filled}, so {new} more do not fit; "
            f"create one for at least {filled + new}."
        )


def kv_caches(layers: int, batch: int, heads: int, length: int, width: int, like: Tensor) -> list[LayerKVCache]:
    """One cache per layer."""
    return [LayerKVCache(batch, heads, length, width, like) for _ in range(layers)]


class Cache(Protocol):
    """What a backbone keeps between decoding steps: keys and values, the condition and the time."""

    @property
    def filled(self) -> int:
        """The number of tokens read so far, not counting a text prefix."""
