"""Tensors spread over processes: their parts, and files of safetensors to which each process writes its own."""

import warnings
from concurrent.futures import Future
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor, distribute_tensor

Tensors = dict[str, dict[str, Tensor]]
"""Named groups of named tensors."""
Shapes = dict[str, dict[str, torch.Size]]


def here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor; every process of the group takes part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, laid out over the processes as another is."""
    if isinstance(other, DTensor):
        return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
    return tensor.to(other.device)


def write(folder: Path, tensors: Tensors, group: dist.ProcessGroup) -> Future[None]:
    """Have every process write its parts of tensors to a folder, while it goes on with a copy of them taken now."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    answer = dcp.async_save(dict(_flat(tensors)), storage_writer=writer, process_group=group)
    assert isinstance(answer, Future)
    return answer


def is_sharded(folder: Path) -> bool:
    """Whether several processes wrote a checkpoint together."""
    return any(folder.glob("shard-*.safetensors"))


def shapes(folder: Path) -> Shapes:
    """Of the tensors that `write` wrote, in their groups."""
    found: Shapes = {}
    for key, about in HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata.items():
        assert isinstance(about, TensorStorageMetadata)  # there is nothing else in safetensors
        group, _, name = key.partition("/")
        found.setdefault(group, {})[name] = about.size
    return found


def fill(folder: Path, tensors: Tensors) -> None:
    """Give tensors, whole or spread over any number of processes, the values that `write` wrote."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")  # as is meant
        dcp.load(dict(_flat(tensors)), storage_reader=HuggingFaceStorageReader(str(folder)))


def _flat(tensors: Tensors) -> list[tuple[str, Tensor]]:
    return [(f"{group}/{name}", tensor.detach()) for group, named in tensors.items() for name, tensor in named.items()]
