"""Sequences: KV caches for token-by-token decoding, and the text before the tokens."""

from typing import Protocol

import torch
from torch import Tensor, nn

from tmatch.condition import Condition
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

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens; returns views of all so far."""
        new = k.shape[2]
        self.keys.narrow(2, self.filled, new).copy_(k)
        self.values.narrow(2, self.filled, new).copy_(v)
        self.filled += new
        return self.keys.narrow(2, 0, self.filled), self.values.narrow(2, 0, self.filled)


class Cache(Protocol):
    """What a backbone keeps between decoding steps: keys and values, the condition and the time."""

    @property
    def filled(self) -> int:
        """The number of tokens read so far, not counting a text prefix."""


def read_condition(linear: nn.Linear | None, condition: Condition | None, batch: int) -> Condition | None:
    """The condition of each image, projected to the width of a backbone; raises if layer or condition is missing."""
    if linear is None or condition is None:
        if condition is not None:
            raise ValueError("This backbone is unconditional; build it with a condition_width to use a condition.")
        if linear is not None:
            raise ValueError("This backbone needs a condition; for unconditional samples pass the null condition.")
        return None
    if condition.tokens.shape[-1] != linear.in_features:
        raise ValueError(f"Conditions must have the width {linear.in_features}; got {condition.tokens.shape[-1]}.")
    return Condition(linear(condition.tokens.to(linear.weight.dtype)), condition.mask).repeated(batch)


def sequence_mask(text: Condition | None, batch: int, length: int, device: torch.device) -> Tensor:
    """The padding mask of [text, tokens], (batch, text + tokens)."""
    tokens = torch.ones(batch, length, dtype=torch.bool, device=device)
    return tokens if text is None else torch.cat((text.mask, tokens), dim=1)


def position_ids(valid: Tensor) -> Tensor:
    """The position of each token, not counting padding."""
    return (valid.cumsum(1) - 1).clamp(min=0)
