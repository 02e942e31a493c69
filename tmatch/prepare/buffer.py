"""Images that wait to be encoded, in batches of one size."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tmatch.data.crop import Size
from tmatch.data.manifest import Skipped
from tmatch.data.shards import Samples


@dataclass(frozen=True)
class CroppedImage:
    """A usable row: its image, cropped, (3, height, width) uint8, and its captions."""

    row: int
    pixels: Tensor
    captions: tuple[str, ...]


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk to be written."""

    samples: dict[Size, Samples]
    skipped: list[Skipped]
    captions_cut: int


class EncodeBuffer:
    """Images of one size, encoded as soon as they fill a batch, so that few are held as pixels."""

    def __init__(self, encode: Callable[[Tensor], Tensor], batch_size: int) -> None:
        self.encode = encode
        self.batch_size = batch_size
        self.rows: list[tuple[int, tuple[str, ...]]] = []
        self._waiting: list[Tensor] = []
        self._latents: list[Tensor] = []

    def add(self, image: CroppedImage) -> None:
        """Add an image; its row number and captions are kept in `rows`."""
        self.rows.append((image.row, image.captions))
        self._waiting.append(image.pixels)
        if len(self._waiting) == self.batch_size:
            self._flush()

    def latents(self) -> Tensor:
        """The latents of all images added."""
        if self._waiting:
            self._flush()
        return torch.cat(self._latents)

    def _flush(self) -> None:
        self._latents.append(self.encode(torch.stack(self._waiting)))
        self._waiting.clear()
