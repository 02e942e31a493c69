"""Encoding a whole data set into states, with a cache on disk."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tmatch.codec import Codec
from tmatch.data.captioned import BATCH_SIZE, CaptionedImages
from tmatch.data.progress import progress_bar
from tmatch.files import write_tensors
from tmatch.ranks import rank_and_world_size
from tmatch.tensors import State


def encode_dataset(
    codec: Codec,
    images: CaptionedImages,
    device: torch.device,
    cache: Path | None = None,
    fingerprint: str = "",
    progress: bool = False,
) -> State:
    """The states of all images, on `device`.

    With `cache`, rank 0 stores them as `cache/<fingerprint>.safetensors`, and the next call reads that file instead of
    encoding again; the fingerprint identifies the codec and the images (`images.fingerprint()`).
    """
    file = None if cache is None else cache / f"{fingerprint}.safetensors"
    if file is not None and (states := _read(file, len(images))) is not None:
        return states.to(device)
    count = -(-len(images) // BATCH_SIZE)
    states = codec.encode_all(progress_bar(images.batches(), "Encoding images", count, progress), device)
    if file is not None and rank_and_world_size()[0] == 0:
        write_tensors(file, {"states": states})
    return states


def _read(file: Path, count: int) -> State | None:
    """Cached states; None if the file is missing or damaged."""
    try:
        states = load_file(file).get("states")
    except (FileNotFoundError, SafetensorError):
        return None
    return states if states is not None and len(states) == count else None
