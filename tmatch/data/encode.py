"""Captioned images that are loaded a few at a time, and encoded into states with a cache on disk."""

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tmatch.codec import Codec
from tmatch.codec.saved import autoencoder_digest
from tmatch.data.progress import progress_bar
from tmatch.data.sources.source import conditions_in_words
from tmatch.files import cache_folder, write_tensors
from tmatch.ranks import rank_and_world_size
from tmatch.tensors import State

BATCH_SIZE = 125


class CaptionedImages(ABC):
    """Images with one condition each; they are read or rendered on demand and need not fit in memory."""

    captions: Sequence[Any]
    """A caption, the index of a class, or None for each image."""
    classes: Sequence[str] | None = None
    """Names of the classes, where `captions` are indices."""

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def conditions(self) -> str:
        """What the images are trained with, in words."""
        return conditions_in_words(isinstance(self.captions[0], str), self.classes)

    @abstractmethod
    def load(self, indices: Sequence[int]) -> Tensor:
        """The images with these indices, (n, 3, height, width) in [0, 1]."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes when an image changes, for the cache of encoded images."""

    def batches(self, size: int = BATCH_SIZE) -> Iterator[Tensor]:
        """All images in order, in batches of `size`."""
        for start in range(0, len(self), size):
            yield self.load(range(start, min(start + size, len(self))))


def encode_dataset(
    codec: Codec, images: CaptionedImages, device: torch.device, cache: Path | None = None, fingerprint: str = "",
    progress: bool = False,
) -> State:  # fmt: skip
    """The states of all images, on `device`.

    With `cache`, rank 0 stores them as `cache/<fingerprint>.safetensors`, and the next call reads that file instead of
    encoding again; the fingerprint identifies the codec and the images (`images.fingerprint()`).
    """
    file = Path() if cache is None else cache / f"{fingerprint}.safetensors"
    if file.is_file():
        with suppress(SafetensorError):  # encode again if the file is damaged
            return load_file(file)["states"].to(device)
    count = -(-len(images) // BATCH_SIZE)
    batches = progress_bar(images.batches(), "Encoding images", count, progress)
    states = torch.cat([codec.encode(batch.to(device)) for batch in batches])
    if cache is not None and rank_and_world_size()[0] == 0:
        try:
            write_tensors(file, {"states": states})
        except OSError as error:  # a read-only disk, or another run that writes the same file
            print(f"tmatch: the encoded images are not cached: {error}", file=sys.stderr)
    return states


def states_key(codec: Codec, images: CaptionedImages, device: torch.device) -> str:
    """A digest of everything that the states of images depend on."""
    encoder = (autoencoder_digest(codec), codec.patch.patch, device.type, torch.__version__)
    parts = (images.fingerprint(), len(images), *encoder)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def encode_cached(codec: Codec, images: CaptionedImages, device: torch.device, progress: bool = False) -> State:
    """The states of all images, read from the cache folder if they were encoded before."""
    key = states_key(codec, images, device)
    return encode_dataset(codec, images, device, cache_folder() / "states", key, progress)
