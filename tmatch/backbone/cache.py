"""What a causal backbone remembers while a sequence is decoded token by token."""

from typing import Protocol

import torch
from torch import Tensor

from tmatch.tensors import autocast_kind


class LayerKVCache:
    """The keys and values of one layer, (batch, heads, length, width): allocated once, filled from the front.

    Under autocast they are kept as attention reads them, and not cast again for each token.
    """

    def __init__(self, batch: int, heads: int, length: int, width: int, like: Tensor) -> None:
        kind = autocast_kind(like.device)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
        self.keys, self.values = (like.new_empty(batch, heads, length, width, dtype=dtype) for _ in range(2))
        self.filled = 0

    @property
    def length(self) -> int:
        """How many tokens fit."""
        return self.keys.shape[2]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take in more tokens; the answer is a view of all so far."""
        new = k.shape[2]
        self.keys.narrow(2, self.filled, new).copy_(k)
        self.values.narrow(2, self.filled, new).copy_(v)
        self.filled += new
        return self.keys.narrow(2, 0, self.filled), self.values.narrow(2, 0, self.filled)


def require_room(tokens: Tensor, batch: int, length: int, filled: int) -> None:
    """Refuse tokens (batch, new, width) that do not fit into a cache; those of a text prefix are not counted."""
    if len(tokens) != batch:
        raise ValueError(f"The cache was opened for a batch of {batch}, and was given one of {len(tokens)}.")
    new = tokens.shape[1]
    if filled + new > length:
        raise ValueError(
            f"The cache was made for {length} tokens, holds {filled}, and was asked to take {new} more; "
            f"open one of at least {filled + new}."
        )


def kv_caches(layers: int, batch: int, heads: int, length: int, width: int, like: Tensor) -> list[LayerKVCache]:
    """A memory for each layer."""
    return [LayerKVCache(batch, heads, length, width, like) for _ in range(layers)]


class Cache(Protocol):
    """All that a backbone needs of the tokens it has read, and what is the same for every token: condition and time."""

    @property
    def filled(self) -> int:
        """Tokens read so far; those of a text prefix are not counted."""
