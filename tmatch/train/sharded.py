"""Checkpoints of tensors that are spread over processes: each writes its parts, in the background, as safetensors."""

import warnings
from concurrent.futures import Future
from math import prod
from pathlib import Path

from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tmatch.train.checkpoint import Shapes, Tensors


def write(folder: Path, tensors: Tensors, group: dist.ProcessGroup) -> Future[None]:
    """Have every process write its parts of tensors to a folder, while it goes on with a copy of them taken now."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    answer = dcp.async_save(_flat(tensors), storage_writer=writer, process_group=group)
    assert isinstance(answer, Future)
    return answer


def finish(written: Future[None]) -> None:
    """Wait until every process has written."""
    try:
        written.result()
    except CheckpointException as error:
        raise OSError(f"A checkpoint could not be written ({_reason(error)}); the one before is as it was.") from error


def shapes(folder: Path) -> Shapes:
    """Of the tensors that `write` wrote, in their groups."""
    found: Shapes = {}
    for key, about in HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata.items():
        assert isinstance(about, TensorStorageMetadata)  # there is nothing else in safetensors
        if sum(prod(chunk.sizes) for chunk in about.chunks) != prod(about.size):
            raise ValueError(f"a part of {key} is missing")
        group, _, name = key.partition("/")
        found.setdefault(group, {})[name] = about.size
    return found


def fill(folder: Path, tensors: Tensors) -> None:
    """Give tensors, whole or spread over any number of processes, the values that `write` wrote."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")  # as is meant
        try:
            dcp.load(_flat(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))
        except CheckpointException as error:
            raise ValueError(str(_reason(error))) from error


def _flat(tensors: Tensors) -> dict[str, object]:
    return {f"{group}/{name}": tensor.detach() for group, named in tensors.items() for name, tensor in named.items()}


def _reason(error: CheckpointException) -> BaseException:
    """What the first process that failed says."""
    return next(iter(error.failures.values()))[0]
