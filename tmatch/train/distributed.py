"""Several processes: replicas of the weights (DDP), or shards of them (FSDP2)."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
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

from tmatch.train import checkpoint, sharded
from tmatch.train.checkpoint import Tensors
from tmatch.train.processes import Loss, Network, Parallel, SingleProcess, T

LONGEST = timedelta(hours=2)
"""To wait where the first process has something to do, such as drawing images; else PyTorch's own patience holds."""


class DDP(SingleProcess):
    """Every process has all weights; gradients are averaged as they come (DDP)."""

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.device = device
        self._patient = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=LONGEST))

    def prepare(self, networks: nn.Module, units: Sequence[nn.Module], loss: str) -> Loss:
        # DDP would order gradients anew after a process's first step, and so add them up otherwise once a run goes on.
        # It does not while it looks for parameters without a gradient, of which `_Called` then has one. On a GPU, where
        # kernels promise no order either, that would only have the host wait in every step.
        ordered = self.device.type == "cpu"
        called = _Called(networks, loss, unused=ordered).to(self.device)
        self._replica = DistributedDataParallel(called, gradient_as_bucket_view=True, find_unused_parameters=ordered)
        return self._replica

    def no_sync(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()

    def gather(self, networks: Network) -> Network | None:
        return networks if self.rank == 0 else None

    def mean(self, value: Tensor) -> float:
        total = value.to(self.device, torch.float64, copy=True)
        dist.all_reduce(total)
        return total.item() / self.world

    def any_rank(self, wish: bool) -> bool:
        return self.mean(torch.tensor(wish)) > 0

    def broadcast(self, value: T) -> T:
        values = [value]
        dist.broadcast_object_list(values, device=self.device)
        return values[0]

    def barrier(self) -> None:
        dist.barrier(self._patient)

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        if self.rank == 0:
            checkpoint.save(out, step, tensors, record)
        self.barrier()

    def drain(self) -> None:
        """Gloo's threads let go of what was said after it was heard, and abort the process if Python ends meanwhile.

        Destroying a group waits for its threads only if nothing else refers to it, as replicas, meshes and DTensor's
        caches do. So the last word is said in a group of its own; by then the threads of others had their turn.
        """
        last = dist.new_group(backend="gloo", timeout=LONGEST)
        dist.barrier(last)
        dist.destroy_process_group(last)


class Shards(DDP):
    """Every process has a share of each weight, and gathers those of one unit after the other (FSDP2).

    With several `replicas` the processes form as many groups, in the order of their ranks. Each group has all weights
    between its processes, and gathers without the others (HSDP).
    """

    def __init__(self, device: torch.device, precision: torch.dtype | None = None, replicas: int = 1) -> None:
        super().__init__(device)
        # Weights are gathered in `precision`; autocast chooses for what they act on, and gradients add up in float32.
        self.policy = MixedPrecisionPolicy(precision, reduce_dtype=torch.float32, cast_forward_inputs=False)
        sides, names = (replicas, self.world // replicas), ("replicate", "shard")
        mesh = init_device_mesh(device.type, sides, mesh_dim_names=names)
        self.mesh = mesh if replicas > 1 else mesh["shard"]
        self._writers = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))  # talk while the others train
        self._saving: tuple[Future[None], Callable[[], object]] | None = None

    def prepare(self, networks: nn.Module, units: Sequence[nn.Module], loss: str) -> Loss:
        if self.rank == 0:  # to assemble weights in, on the CPU, where it does not take from what trains
            self._plain = copy.deepcopy(networks.cpu(), getattr(networks, "deepcopy_memo", dict)())
            networks.to(self.device)
        self.shard(networks, units)
        register_fsdp_forward_method(networks, loss)
        self._root = cast("FSDPModule", networks)
        method: Loss = getattr(networks, loss)
        return method

    def shard(self, networks: nn.Module, units: Sequence[nn.Module]) -> None:
        for unit in units:
            fully_shard(unit, mesh=self.mesh, mp_policy=self.policy)
            if hasattr(unit, "prepare"):  # which is called besides a head's forward
                register_fsdp_forward_method(unit, "prepare")
        fully_shard(networks, mesh=self.mesh, mp_policy=self.policy)
        # What our units return is never changed in place.
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

    def gather(self, networks: Network) -> Network | None:
        plain = self._plain.state_dict() if self.rank == 0 else {}
        for name, tensor in networks.state_dict().items():  # one after the other, for a rank cannot hold them all
            weight = self.full_tensor(tensor)
            if self.rank == 0:
                plain[name].copy_(weight)
        return cast("Network", self._plain) if self.rank == 0 else None

    def to_device(self, networks: Network) -> Network:
        return networks.to(self.device)

    def offload(self) -> None:
        if self.rank == 0:
            self._plain.cpu()

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        """Every process writes its part, in the background."""
        self.finish_save(wait=True)
        draft = checkpoint.draft(out)
        if self.rank == 0:
            checkpoint.begin(draft)
        self.barrier()
        self._saving = sharded.write(draft, tensors, self._writers), lambda: checkpoint.commit(draft, step, record)

    def finish_save(self, wait: bool = False) -> None:
        if self._saving is not None and (wait or self._saving[0].done()):
            (written, commit), self._saving = self._saving, None
            sharded.finish(written)
            if self.rank == 0:
                commit()
        if wait:
            self.barrier()  # for the first, so that none ends before


class _Called(nn.Module):
    """A module whose forward is a method of another."""

    def __init__(self, networks: nn.Module, method: str, unused: bool) -> None:
        super().__init__()
        self.networks = networks
        self.method = method
        self.unused = nn.Parameter(torch.zeros(())) if unused else None  # without one DDP warns that it looks in vain

    def forward(self, *arguments: int) -> Tensor:
        answer: Tensor = getattr(self.networks, self.method)(*arguments)
        return answer


def init_distributed(parallel: Parallel, device: torch.device, precision: torch.dtype | None, replicas: int) -> DDP:
    """The processes that torchrun started; they find each other here."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return DDP(device) if parallel == "replicate" else Shards(device, precision, replicas)
