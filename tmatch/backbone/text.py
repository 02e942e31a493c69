"""The condition, projected to the width of a backbone."""

import torch
from torch import Tensor, nn

from tmatch.condition import Condition


def read_condition(linear: nn.Linear | None, condition: Condition | None, batch: int) -> Condition | None:
    """The projected condition of each image; raises if either layer or condition is missing."""
    if linear is None:
        if condition is not None:
            raise ValueError("This backbone is unconditional; build it with a condition_width to use a condition.")
        return None
    if condition is None:
        raise ValueError("This backbone needs a condition; for unconditional samples pass the null condition.")
    if condition.tokens.shape[-1] != linear.in_features:
        raise ValueError(
            f"This backbone reads conditions of width {linear.in_features}; got {condition.tokens.shape[-1]}. Use the "
            "text encoder that the model was trained with."
        )
    return Condition(linear(condition.tokens.to(linear.weight.dtype)), condition.mask).repeated(batch)


def sequence_mask(text: Condition | None, batch: int, length: int, device: torch.device) -> Tensor:
    """The padding mask of [text, tokens], (batch, text + tokens)."""
    tokens = torch.ones(batch, length, dtype=torch.bool, device=device)
    return tokens if text is None else torch.cat((text.mask, tokens), dim=1)


def position_ids(valid: Tensor) -> Tensor:
    """The position of each token, not counting padding."""
    return (valid.cumsum(1) - 1).clamp(min=0)
