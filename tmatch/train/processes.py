"""The processes that train together: one, or as many as torchrun starts."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from tmatch.train import checkpoint
from tmatch.train.checkpoint import Tensors

Network = TypeVar("Network", bound=nn.Module)
Parallel = Literal["replicate", "shard"]
Loss = Callable[..., Tensor]
T = TypeVar("T")


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

    def mean(self, value: Tensor) -> float:
        """Of a number, over all processes."""
        return value.item()

    def agreed(self, wish: bool) -> bool:
        """Whether any process wishes it."""
        return wish

    def chosen(self, value: T) -> T:
        """What the first process has of it."""
        return value

    def wait(self) -> None:
        """Until all are here."""

    def spread(self, networks: nn.Module, units: Sequence[nn.Module]) -> None:
        """Lay networks that are not trained, the averaged ones, out as those that are."""

    def assembled(self, networks: Network) -> Network | None:
        """Networks with all of their weights, to draw and measure with; None where another process has that to do."""
        return networks

    def placed(self, networks: Network) -> Network:
        """What was assembled, where it can be computed with."""
        return networks

    def dismiss(self) -> None:
        """Done with it: while training there may be no room for it."""

    def here(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that this process has."""
        return tensor

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor; every process takes part."""
        return tensor

    def like(self, tensor: Tensor, other: Tensor) -> Tensor:
        """A whole tensor, laid out over the processes as another is."""
        return tensor.to(other.device)

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        """Begin to write a checkpoint of the run in `out`; it may count only once it is settled."""
        checkpoint.save(out, step, tensors, record)

    def settle(self, wait: bool = False) -> None:
        """Make what was written the newest checkpoint, if it is on the disk; or `wait` until it is."""

    def rest(self) -> None:
        """Have nothing under way between the processes, so that their program may end here."""


def place_of_process() -> tuple[int, int]:
    """This process's rank and how many there are, as torchrun tells them."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and world.isdigit() and int(rank) < int(world)):
        raise ValueError(
            f"RANK={rank} is none of WORLD_SIZE={world} processes: torchrun sets both; unset them without it."
        )
    return int(rank), int(world)


def place_on_machine() -> tuple[int, int]:
    """This process's rank among those of its machine, and how many these are; by torchrun, or as among all."""
    rank, world = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdigit() and world.isdigit() else place_of_process()


def joined(
    parallel: Parallel, device: torch.device, precision: torch.dtype | None = None, replicas: int = 1
) -> Processes:
    """The processes that torchrun started, if it did; they find each other here."""
    if place_of_process()[1] == 1:
        return Processes()
    from tmatch.train import distributed  # a second of imports that a process by itself does without

    return distributed.joined(parallel, device, precision, replicas)
