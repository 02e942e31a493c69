"""Images that wait to be encoded, a batch of one size at a time."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tmatch.data.crop import Size
from tmatch.data.manifest import Skipped
from tmatch.data.shards import Samples


@dataclass(frozen=True)
class Image:
    """A row that can be used: its image, cut to a size, (3, height, width) uint8, and its captions."""

    row: int
    pixels: Tensor
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Encoded:
    """A chunk that is yet to be written."""

    samples: dict[Size, Samples]
    skipped: list[Skipped]
    captions_cut: int


class EncodeBuffer:
    """Images of one size, encoded as soon as there is a batch of them, so that few are held as pixels."""

    def __init__(self, encode: Callable[[Tensor], Tensor], size: int) -> None:
        self.encode = encode
        self.size = size
        self.rows: list[tuple[int, tuple[str, ...]]] = []
        self._waiting: list[Tensor] = []
        self._latents: list[Tensor] = []

    def add(self, image: Image) -> None:
        """One more; its row and captions are kept."""
        self.rows.append((image.row, image.captions))
        self._waiting.append(image.pixels)
        if len(self._waiting) == self.size:
            self._flush()

    def latents(self) -> Tensor:
        """Of all images."""
        if self._waiting:
            self._flush()
        return torch.cat(self._latents)

    def _flush(self) -> None:
        self._latents.append(self.encode(torch.stack(self._waiting)))
        self._waiting.clear()
