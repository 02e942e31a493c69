"""The condition, brought to a backbone's width."""

import torch
from torch import Tensor, nn

from tmatch.condition import Condition


def read_condition(linear: nn.Linear | None, condition: Condition | None, batch: int) -> Condition | None:
    """The condition of each image, by the backbone's linear layer; refused where one of the two is missing."""
    if linear is None:
        if condition is not None:
            raise ValueError("This backbone was built without a condition; give it a condition_width to use one.")
        return None
    if condition is None:
        raise ValueError("This backbone needs a condition; for unconditional samples pass the null condition.")
    if condition.tokens.shape[-1] != linear.in_features:
        raise ValueError(
            f"This backbone reads conditions {linear.in_features} wide; got {condition.tokens.shape[-1]}: "
            "was the text encoded by another encoder?"
        )
    return Condition(linear(condition.tokens.to(linear.weight.dtype)), condition.mask).repeated(batch)


def sequence_mask(text: Condition | None, batch: int, length: int, device: torch.device) -> Tensor:
    """Which places of [text, tokens] are no padding, (batch, text + tokens)."""
    tokens = torch.ones(batch, length, dtype=torch.bool, device=device)
    return tokens if text is None else torch.cat((text.mask, tokens), dim=1)


def position_ids(valid: Tensor) -> Tensor:
    """The place of each on the line, where padding takes none."""
    return (valid.cumsum(1) - 1).clamp(min=0)
