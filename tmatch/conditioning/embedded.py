"""Captions that are already encoded."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tmatch.condition import Condition
from tmatch.conditioning.base import Conditioner


class EmbeddedText(Conditioner):
    """Pads and batches the tokens (length, width) of captions; `null` holds the tokens of the empty caption."""

    frozen = True

    def __init__(self, null: Tensor) -> None:
        super().__init__()
        self.width: int = null.shape[-1]
        self.null = nn.Buffer(null.float(), persistent=False)

    def forward(self, inputs: Sequence[Tensor]) -> Condition:
        if not all(isinstance(tokens, Tensor) for tokens in inputs):
            raise ValueError("This conditioner takes encoded captions, tensors (length, width); encode the text first.")
        device = self.null.device
        lengths = torch.tensor([len(tokens) for tokens in inputs])
        tokens = pad_sequence([tokens.float() for tokens in _to_device(inputs, device)], batch_first=True)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        return Condition(tokens, mask.to(device, non_blocking=device.type == "cuda"))


def _to_device(captions: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The captions on a device, moved in a single copy: one copy per caption would synchronize each time."""
    away = [caption for caption in captions if caption.device != device]
    if not away:
        return list(captions)
    moved = iter(torch.cat(away).to(device).float().split([len(caption) for caption in away]))
    return [caption if caption.device == device else next(moved) for caption in captions]
