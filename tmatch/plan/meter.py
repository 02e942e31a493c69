"""Measurements on the meta device: FLOPs, live bytes and weights read."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tmatch.plan.gpu import GPUSimulationMode


class Cost(NamedTuple):
    """FLOPs, and the number of weights that are read for them."""

    flops: int
    weights: int


def cost(call: Callable[[], object], network: nn.Module) -> Cost:
    """Return the cost of a call of a network, without the backward pass."""
    reads, counter = WeightReadMode(network), FlopCounterMode(display=False)
    with torch.no_grad(), counter, reads, GPUSimulationMode():
        call()
    return Cost(counter.get_total_flops(), reads.numbers)


class PeakMemoryMode(TorchDispatchMode):
    """Counts the bytes of live storages, `now` and at the `peak`.

    Views share a storage, which counts once; storages from before, such as parameters, do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        given = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if id(storage) not in given | self._known:
                self._known.add(id(storage))
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, id(storage), storage.nbytes()).atexit = False
        self.peak = max(self.peak, self.now)
        return out

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class WeightReadMode(TorchDispatchMode):
    """Counts the `numbers` in the parameters that operations read."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.numbers = 0
        self._unread = {p.untyped_storage(): p.numel() for p in network.parameters()}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        self.numbers += sum(self._unread.pop(storage, 0) for storage in _storages((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _storages(value: object) -> list[torch.UntypedStorage]:
    return [x.untyped_storage() for x in tree_leaves(value) if isinstance(x, Tensor)]


def backward(loss: Tensor) -> None:
    """Run `loss.backward()` within the active function modes.

    `Tensor.backward` disables them, but checkpointing recomputes blocks during the backward pass.
    """
    torch.autograd.backward(get_gradient_edge(loss), torch.ones_like(loss))
