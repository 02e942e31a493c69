"""Captions that were encoded before."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tmatch.condition import Condition
from tmatch.conditioning.base import Conditioner


class EmbeddedText(Conditioner):
    """Takes the tokens (length, width) that a frozen encoder made of captions; `null` are those of the empty one."""

    frozen = True

    def __init__(self, null: Tensor) -> None:
        super().__init__()
        self.width = null.shape[-1]
        self.nothing = nn.Buffer(null.float(), persistent=False)

    @property
    def empty(self) -> Tensor:
        return self.nothing

    def forward(self, captions: Sequence[Tensor]) -> Condition:
        device = self.nothing.device
        lengths = torch.tensor([len(caption) for caption in captions])
        tokens = pad_sequence([caption.float() for caption in _moved(captions, device)], batch_first=True)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        return Condition(tokens, mask.to(device, non_blocking=device.type == "cuda"))


def _moved(captions: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Captions on a device. Those that are not there yet go together: a copy for each would have to wait each time."""
    away = [caption for caption in captions if caption.device != device]
    if not away:
        return list(captions)
    arrived = iter(torch.cat(away).to(device).float().split([len(caption) for caption in away]))
    return [caption if caption.device == device else next(arrived) for caption in captions]
