"""Conditions: text embeddings, class embeddings, or any sequence of vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tmatch.tensors import require_tensor


@dataclass(frozen=True)
class Condition:
    """A sequence of vectors per image, `tokens` (batch, length, width); `mask` (batch, length) is False on padding."""

    tokens: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        require_tensor("A condition", self.tokens)
        if self.tokens.ndim != 3:
            raise ValueError(f"A condition must have shape (batch, length, width); got {tuple(self.tokens.shape)}.")
        if self.mask.shape != self.tokens.shape[:2] or self.mask.dtype != torch.bool:
            raise ValueError("The mask of a condition must be boolean of shape (batch, length), like its tokens.")

    @classmethod
    def dense(cls, tokens: Tensor) -> "Condition":
        """A condition without padding."""
        require_tensor("A condition", tokens)
        return cls(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, images: slice | Tensor) -> "Condition":
        return Condition(self.tokens[images], self.mask[images])

    def padded(self, length: int) -> "Condition":
        """The condition padded to a length."""
        extra = length - self.tokens.shape[1]
        return Condition(pad(self.tokens, (0, 0, 0, extra)), pad(self.mask, (0, extra))) if extra else self

    def trimmed(self) -> "Condition":
        """The condition cut to the longest of the batch; trim before moving to a GPU, since it reads the mask."""
        used = self.mask.any(0).nonzero()
        length = int(used[-1]) + 1 if len(used) else 1
        return Condition(self.tokens[:, :length], self.mask[:, :length])

    def repeated(self, batch: int) -> "Condition":
        """A single condition expanded to the batch; a batch of conditions unchanged."""
        if len(self) == batch:
            return self
        if len(self) == 1:
            return Condition(self.tokens.expand(batch, -1, -1), self.mask.expand(batch, -1))
        raise ValueError(f"Got {len(self)} conditions for {batch} images; pass one per image, or a single one.")

    @staticmethod
    def cat(conditions: Sequence["Condition"]) -> "Condition":
        """Several batches concatenated, padded to the longest."""
        widths = {c.tokens.shape[-1] for c in conditions}
        if len(widths) > 1:
            raise ValueError(f"Conditions of widths {sorted(widths)} cannot be combined; use the same encoder for all.")
        length = max(c.tokens.shape[1] for c in conditions)
        padded = [c.padded(length) for c in conditions]
        return Condition(torch.cat([c.tokens for c in padded]), torch.cat([c.mask for c in padded]))

    def dropped(self, drop: Tensor, null: "Condition") -> "Condition":
        """The batch with the null condition where `drop` (batch,) is true, to train for guidance."""
        both = Condition.cat([self, null.repeated(len(self))])
        index = torch.arange(len(self), device=drop.device)
        return both[torch.where(drop, index + len(self), index)]
