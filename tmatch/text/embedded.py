"""Captions that were encoded before."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tmatch.condition import Condition
from tmatch.text.base import TextEncoder


class EmbeddedText(TextEncoder):
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
        lengths = torch.tensor([len(caption) for caption in captions], device=device)
        tokens = pad_sequence([caption.to(device).float() for caption in captions], batch_first=True)
        return Condition(tokens, torch.arange(tokens.shape[1], device=device) < lengths[:, None])
