"""Several processes: replicated weights (DDP) or sharded weights (FSDP2)."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tmatch.train import checkpoint, dcp
from tmatch.train.checkpoint import Tensors
from tmatch.train.distributed import Distributed, Module, T

TIMEOUT = timedelta(hours=2)
"""Timeout where rank 0 works alone, for example on previews; PyTorch's default timeout applies elsewhere."""


class MultiProcess(Distributed):
    """Communication between the processes that torchrun describes in the environment."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.device = device
        self._patient = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=TIMEOUT))

    def mean(self, value: Tensor) -> float:
        total = value.to(self.device, torch.float64, copy=True)
        dist.all_reduce(total)
        return total.item() / self.world

    def any_rank(self, flag: bool) -> bool:
        return self.mean(torch.tensor(flag)) > 0

    def broadcast(self, value: T) -> T:
        values = [value]
        dist.broadcast_object_list(values, device=self.device)
        return values[0]

    def barrier(self) -> None:
        dist.barrier(self._patient)

    def drain(self) -> None:
        """Synchronize in a last group of its own.

        Gloo's threads release messages after delivery and abort the process if Python exits in the meantime.
        Destroying a group waits for its threads only if nothing else refers to it, as DDP, meshes and DTensor caches
        do. During the barrier of the last group the threads of the others finish.
        """
        last = dist.new_group(backend="gloo", timeout=TIMEOUT)
        dist.barrier(last)
        dist.destroy_process_group(last)


class DDP(MultiProcess):
    """Every process holds all weights; gradients are averaged during the backward pass."""

    def prepare(self, module: nn.Module, fsdp_modules: Sequence[nn.Module]) -> Callable[..., Tensor]:
        # DDP reorders its buckets after the first step of a process, so a resumed run would add gradients in another
        # order. It does not while it searches for unused parameters, and warns where there is none. GPU kernels
        # guarantee no order in any case, and the search would synchronize the host in every step.
        ordered = self.device.type == "cpu"
        module = _WithUnusedParameter(module) if ordered else module
        self._replica = DistributedDataParallel(module, gradient_as_bucket_view=True, find_unused_parameters=ordered)
        return self._replica

    def no_sync(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()

    def gather(self, module: Module) -> Module | None:
        return module if self.rank == 0 else None

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        if self.rank == 0:
            checkpoint.save(out, step, tensors, record)
        self.barrier()


class _WithUnusedParameter(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, *args: Any) -> Any:  # noqa: ANN401
        return self.module(*args)


class FSDP(MultiProcess):
    """Every process holds a shard of each weight and gathers one FSDP module at a time.

    With several `replicas` the processes form as many groups, in the order of their ranks. Each group holds all
    weights and gathers them within the group (HSDP).
    """

    def __init__(self, device: torch.device, dtype: torch.dtype | None = None, replicas: int = 1) -> None:
        super().__init__(device)
        # Weights are gathered in `dtype`, autocast chooses that of activations, and gradients are summed in float32.
        self.policy = MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        shape, names = (replicas, self.world // replicas), ("replicate", "shard")
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        self.mesh = mesh if replicas > 1 else mesh["shard"]
        self._writers = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))  # of the background writes
        self._thread = ThreadPoolExecutor(1)
        self._saving: Future[None] | None = None

    def prepare(self, module: nn.Module, fsdp_modules: Sequence[nn.Module]) -> Callable[..., Tensor]:
        if self.rank == 0:  # a copy on the CPU to gather weights in
            self._full = copy.deepcopy(module.cpu(), getattr(module, "deepcopy_memo", dict)())
            module.to(self.device)
        self.shard(module, fsdp_modules)
        self._root = cast("FSDPModule", module)
        return module

    def shard(self, module: nn.Module, fsdp_modules: Sequence[nn.Module]) -> None:
        for part in fsdp_modules:
            fully_shard(part, mesh=self.mesh, mp_policy=self.policy)
            if hasattr(part, "prepare"):  # a head, called through `prepare` and `forward`
                register_fsdp_forward_method(part, "prepare")
        fully_shard(module, mesh=self.mesh, mp_policy=self.policy)
        # The outputs of our modules are never changed in place.
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view tensor")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._root.set_requires_gradient_sync(True)

    def to_local(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def full_tensor(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def distribute_like(self, tensor: Tensor, other: Tensor) -> Tensor:
        if isinstance(other, DTensor):
            return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
        return super().distribute_like(tensor, other)

    def gather(self, module: Module) -> Module | None:
        full = self._full.state_dict() if self.rank == 0 else {}
        for name, tensor in module.state_dict().items():  # one at a time: a device cannot hold them all
            weight = self.full_tensor(tensor)
            if self.rank == 0:
                full[name].copy_(weight)
        return cast("Module", self._full) if self.rank == 0 else None

    def to_device(self, module: Module) -> Module:
        return module.to(self.device)

    def offload(self) -> None:
        if self.rank == 0:
            self._full.cpu()

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        """Write the part of every process, and commit them with their digests, in the background."""
        self.finish_save(wait=True)
        draft = checkpoint.draft(out)
        if self.rank == 0:
            checkpoint.begin(draft)
        self.barrier()
        written = dcp.write(draft, checkpoint.flatten(tensors), self._writers)

        def complete() -> None:
            dcp.finish(written)
            if self.rank == 0:
                checkpoint.commit(draft, step, record)

        self._saving = self._thread.submit(complete)

    def finish_save(self, wait: bool = False) -> None:
        if self._saving is not None and (wait or self._saving.done()):
            saving, self._saving = self._saving, None
            saving.result()
        if wait:
            self.barrier()  # no process continues before the commit
