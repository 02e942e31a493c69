"""The interface between the training loop and the processes that run it, implemented for a single process."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from tmatch.train import checkpoint
from tmatch.train.checkpoint import Tensors

Module = TypeVar("Module", bound=nn.Module)
T = TypeVar("T")


class Distributed:
    """The processes that train together: how they hold the weights, communicate and save.

    The methods of this class are those of a single process.
    """

    rank = 0
    world = 1

    def local_parts(self, accumulation_steps: int) -> range:
        """Return the micro-batches that this process computes, of `accumulation_steps` x `world` per step."""
        return range(self.rank * accumulation_steps, (self.rank + 1) * accumulation_steps)

    def prepare(self, module: nn.Module, fsdp_modules: Sequence[nn.Module]) -> Callable[..., Tensor]:
        """Distribute a module for training; return the callable that computes its forward pass."""
        return module

    def shard(self, module: nn.Module, fsdp_modules: Sequence[nn.Module]) -> None:
        """Distribute a module that is not trained, such as the averaged weights, like the trained one."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate gradients locally, for all micro-batches of a step but the last."""
        return nullcontext()

    def mean(self, value: Tensor) -> float:
        """Return the mean of a scalar over all processes."""
        return value.item()

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on any process."""
        return flag

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0."""
        return value

    def barrier(self) -> None:
        """Wait for all processes, for hours if necessary."""

    def gather(self, module: Module) -> Module | None:
        """Return the module with all of its weights on rank 0, for previews and evaluation, and None elsewhere."""
        return module

    def to_device(self, module: Module) -> Module:
        """Move a gathered module to the device."""
        return module

    def offload(self) -> None:
        """Move the gathered module off the device, to leave its memory to training."""

    def to_local(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that this process holds."""
        return tensor

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Return all of a tensor; a collective call."""
        return tensor

    def distribute_like(self, tensor: Tensor, other: Tensor) -> Tensor:
        """Distribute a full tensor as another one is."""
        return tensor.to(other.device)

    def save(self, out: Path, step: int, tensors: Tensors, record: dict[str, Any]) -> None:
        """Start to write a checkpoint of the run in `out`; `finish_save` completes it."""
        checkpoint.save(out, step, tensors, record)

    def finish_save(self, wait: bool = False) -> None:
        """Commit the checkpoint that `save` started if it is written, or `wait` for it."""

    def drain(self) -> None:
        """Finish all communication, so that the process may exit."""
