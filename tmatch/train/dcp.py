"""Checkpoints in parts: each process writes its shards of the tensors, in the background, as safetensors."""

import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def write(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> Future[None]:
    """Write the parts of all processes to a folder, from a copy that is made before the call returns."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    answer = dcp.async_save(_state(tensors), storage_writer=writer, process_group=group)
    assert isinstance(answer, Future)
    return answer


def finish(written: Future[None]) -> None:
    """Wait until every process has written its part."""
    try:
        written.result()
    except CheckpointException as error:
        raise OSError(f"Writing a checkpoint failed ({_reason(error)}); the previous checkpoint is intact.") from error


def shapes(folder: Path) -> dict[str, torch.Size]:
    """Return the shapes of the full tensors that `write` wrote."""
    found: dict[str, torch.Size] = {}
    for key, metadata in HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata.items():
        assert isinstance(metadata, TensorStorageMetadata)  # safetensors hold nothing else
        complete = sum(prod(chunk.sizes) for chunk in metadata.chunks) == prod(metadata.size)
        if not complete or min(metadata.size, default=0) < 0:
            raise ValueError(f"a part of {key} is missing")
        found[key] = metadata.size
    return found


def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Load what `write` wrote into tensors that are full, or sharded over any number of processes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        try:
            dcp.load(_state(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))
        except CheckpointException as error:
            raise ValueError(str(_reason(error))) from error


def _state(tensors: Mapping[str, Tensor]) -> dict[str, object]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _reason(error: CheckpointException) -> BaseException:
    """Return the error of the first process that failed."""
    return next(iter(error.failures.values()))[0]
