"""Captions that were encoded before."""

from collections.abc import Sequence
from functools import reduce

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
        self._empty = null.cpu()  # where captions are before a batch of them moves

    @property
    def empty(self) -> Tensor:
        return self._empty

    def forward(self, captions: Sequence[Tensor]) -> Condition:
        device, dtype = self.nothing.device, reduce(torch.promote_types, (caption.dtype for caption in captions))
        lengths = torch.tensor([len(caption) for caption in captions])
        tokens = pad_sequence([caption.to(dtype) for caption in captions], batch_first=True)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        return Condition(tokens.to(device).float(), mask.to(device))
