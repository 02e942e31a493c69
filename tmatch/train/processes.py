"""The processes that train together: one, or as many as torchrun starts."""

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from tmatch.train import checkpoint, sharded
from tmatch.train.sharded import Tensors, whole_tensor

Network = TypeVar("Network", bound=nn.Module)
Parallel = Literal["replicate", "shard"]
Loss = Callable[..., Tensor]


class Processes:
    """One process by itself, with all weights and every part of a batch."""

    rank = 0
    world = 1

    def prepare(self, networks: nn.Module, units: Sequence[nn.Module], loss: str) -> Loss:
        """Make networks ready to train by their method `loss`; the answer is what to call for it."""
        method: Loss = getattr(networks, loss)
        return method

    def mine(self, accumulate: int) -> range:
        """The parts of a batch that this process computes, of `accumulate` times as many as there are processes."""
        return range(self.rank * accumulate, (self.rank + 1) * accumulate)

    def collecting(self) -> AbstractContextManager[None]:
        """While gradients of several parts add up, before the last."""
        return nullcontext()

    def mean(self, value: float) -> float:
        """Over all processes."""
        return value

    def agreed(self, wish: bool) -> bool:
        """Whether any process wishes it."""
        return wish

    def wait(self) -> None:
        """Until all are here."""

    def spread(self, networks: nn.Module, units: Sequence[nn.Module]) -> None:
        """Lay networks that are not trained, the averaged ones, out as those that are."""

    def assembled(self, networks: Network) -> Network | None:
        """Networks with all of their weights, to draw and measure with; None where another process has that to do."""
        return networks

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        """Begin to write a checkpoint of the run in `out`; it may count only once it is settled."""
        checkpoint.save(out, step, tensors, record)

    def settle(self, wait: bool = False) -> None:
        """Make what was written the newest checkpoint, if it is on the disk; or `wait` until it is."""


class Replicas(Processes):
    """Every process has all weights; gradients are averaged as they come (DDP)."""

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.device = device

    def prepare(self, networks: nn.Module, units: Sequence[nn.Module], loss: str) -> Loss:
        self._replica = DistributedDataParallel(_Called(networks, loss))
        return self._replica

    def collecting(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()

    def assembled(self, networks: Network) -> Network | None:
        return networks if self.rank == 0 else None

    def mean(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.item() / self.world

    def agreed(self, wish: bool) -> bool:
        return self.mean(float(wish)) > 0

    def wait(self) -> None:
        dist.barrier()

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        if self.rank == 0:
            checkpoint.save(out, step, tensors, record)
        self.wait()


class Shards(Replicas):
    """Every process has a share of each weight, and gathers those of one unit after the other (FSDP2)."""

    def __init__(self, device: torch.device, precision: torch.dtype | None = None) -> None:
        super().__init__(device)
        self.policy = MixedPrecisionPolicy(param_dtype=precision)
        self._writers = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))  # talk while the others train
        self._saving: tuple[Future[None], Callable[[], object]] | None = None

    def prepare(self, networks: nn.Module, units: Sequence[nn.Module], loss: str) -> Loss:
        self.spread(networks, units)
        register_fsdp_forward_method(networks, loss)
        self._root = cast("FSDPModule", networks)
        method: Loss = getattr(networks, loss)
        return method

    def spread(self, networks: nn.Module, units: Sequence[nn.Module]) -> None:
        if self.rank == 0 and not hasattr(self, "_plain"):
            self._plain = copy.deepcopy(networks, getattr(networks, "shared", dict)())
        for unit in units:
            fully_shard(unit, mp_policy=self.policy)
            if hasattr(unit, "prepare"):  # called besides its forward
                register_fsdp_forward_method(unit, "prepare")
        fully_shard(networks, mp_policy=self.policy)
        # What our networks return is never changed in place.
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view tensor")

    @contextmanager
    def collecting(self) -> Iterator[None]:
        self._root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._root.set_requires_gradient_sync(True)

    def assembled(self, networks: Network) -> Network | None:
        weights = {name: whole_tensor(tensor) for name, tensor in networks.state_dict().items()}
        if self.rank:
            return None
        self._plain.load_state_dict(weights)
        return cast("Network", self._plain)

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        """Every process writes its part, in the background."""
        self.settle(wait=True)
        draft = checkpoint.draft(out)
        if self.rank == 0:
            checkpoint.begin(draft)
        self.wait()
        self._saving = sharded.write(draft, tensors, self._writers), lambda: checkpoint.commit(draft, step, record)

    def settle(self, wait: bool = False) -> None:
        if self._saving is None or not (wait or self._saving[0].done()):
            return
        (written, commit), self._saving = self._saving, None
        try:
            written.result()
        except CheckpointException as error:
            reason = next(iter(error.failures.values()))[0]
            raise OSError(f"A checkpoint could not be written ({reason}); the one before is as it was.") from error
        if self.rank == 0:
            commit()


class _Called(nn.Module):
    """A module whose forward is a method of another."""

    def __init__(self, networks: nn.Module, method: str) -> None:
        super().__init__()
        self.networks = networks
        self.method = method

    def forward(self, *arguments: int) -> Tensor:
        answer: Tensor = getattr(self.networks, self.method)(*arguments)
        return answer


def place_of_process() -> tuple[int, int]:
    """This process's rank and how many there are, as torchrun tells them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def joined(parallel: Parallel, device: torch.device, precision: torch.dtype | None = None) -> Processes:
    """The processes that torchrun started, if it did; they find each other here."""
    if place_of_process()[1] == 1:
        return Processes()
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=10))
    if parallel == "replicate":
        return Replicas(device)
    return Shards(device, precision)
