"""The processes that train together: one, or as many as torchrun starts."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from tmatch.ranks import rank_and_world_size
from tmatch.train import checkpoint
from tmatch.train.checkpoint import Tensors

Network = TypeVar("Network", bound=nn.Module)
Parallel = Literal["replicate", "shard"]
Loss = Callable[..., Tensor]
T = TypeVar("T")


class SingleProcess:
    """One process by itself, with all weights and every part of a batch."""

    rank = 0
    world = 1

    def prepare(self, networks: nn.Module, units: Sequence[nn.Module], loss: str) -> Loss:
        """Make networks ready to train by their method `loss`; the answer is what to call for it."""
        method: Loss = getattr(networks, loss)
        return method

    def local_parts(self, accumulate: int) -> range:
        """The parts of a batch that this process computes, of `accumulate` times as many as there are processes."""
        return range(self.rank * accumulate, (self.rank + 1) * accumulate)

    def no_sync(self) -> AbstractContextManager[None]:
        """While gradients of several parts add up, before the last."""
        return nullcontext()

    def mean(self, value: Tensor) -> float:
        """Of a number, over all processes."""
        return value.item()

    def any_rank(self, wish: bool) -> bool:
        """Whether any process wishes it."""
        return wish

    def broadcast(self, value: T) -> T:
        """What the first process has of it."""
        return value

    def barrier(self) -> None:
        """Until all are here."""

    def shard(self, networks: nn.Module, units: Sequence[nn.Module]) -> None:
        """Lay networks that are not trained, the averaged ones, out as those that are."""

    def gather(self, networks: Network) -> Network | None:
        """Networks with all of their weights, to draw and measure with; None where another process has that to do."""
        return networks

    def to_device(self, networks: Network) -> Network:
        """What was assembled, where it can be computed with."""
        return networks

    def offload(self) -> None:
        """Done with it: while training there may be no room for it."""

    def to_local(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that this process has."""
        return tensor

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """All of a tensor; every process takes part."""
        return tensor

    def distribute_like(self, tensor: Tensor, other: Tensor) -> Tensor:
        """A whole tensor, laid out over the processes as another is."""
        return tensor.to(other.device)

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        """Begin to write a checkpoint of the run in `out`; it may count only once it is settled."""
        checkpoint.save(out, step, tensors, record)

    def finish_save(self, wait: bool = False) -> None:
        """Make what was written the newest checkpoint, if it is on the disk; or `wait` until it is."""

    def drain(self) -> None:
        """Have nothing under way between the processes, so that their program may end here."""


def init_distributed(
    parallel: Parallel, device: torch.device, precision: torch.dtype | None = None, replicas: int = 1
) -> SingleProcess:
    """The processes that torchrun started, if it did; they find each other here."""
    if rank_and_world_size()[1] == 1:
        return SingleProcess()
    from tmatch.train import distributed  # a second of imports that a process by itself does without

    return distributed.init_distributed(parallel, device, precision, replicas)
