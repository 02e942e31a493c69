"""Measurements on the meta device: FLOPs, live bytes and weights read."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tmatch.plan.gpu import GPUSimulationMode


@dataclass(frozen=True)
class Cost:
    """FLOPs, and the number of weights that are read for them."""

    flops: int
    weights: int


def cost(call: Callable[[], object], networks: nn.Module) -> Cost:
    """Return the cost of a call, without the backward pass."""
    reads, counter = WeightReadMode(networks), FlopCounterMode(display=False)
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
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {id(x.untyped_storage()) for x in tensors((args, *kwargs.values()))}
        for x in tensors(out):
            storage = x.untyped_storage()
            if id(storage) not in given and id(storage) not in self._known:
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

    def __init__(self, networks: nn.Module) -> None:
        super().__init__()
        self._sizes = {id(p.untyped_storage()): (p.untyped_storage(), p.numel()) for p in networks.parameters()}
        self._read: set[int] = set()

    @property
    def numbers(self) -> int:
        return sum(self._sizes[key][1] for key in self._read)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        self._read |= {id(x.untyped_storage()) for x in tensors((args, *kwargs.values()))} & self._sizes.keys()
        return func(*args, **kwargs)


def tensors(value: object) -> Iterator[Tensor]:
    """Yield all tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def backward(loss: Tensor) -> None:
    """Run `loss.backward()` within the active function modes.

    `Tensor.backward` disables them, but checkpointing recomputes blocks during the backward pass.
    """
    torch.autograd.backward(get_gradient_edge(loss), torch.ones_like(loss))


@contextmanager
def gradients(model: nn.Module) -> Iterator[None]:
    """Give every trained parameter a gradient, to which the backward pass adds; restore them on exit."""
    before = [(p, p.grad) for p in model.parameters()]
    for p, _ in before:
        p.grad = torch.empty_like(p) if p.requires_grad else None
    try:
        yield
    finally:
        for p, grad in before:
            p.grad = grad


@contextmanager
def checkpointing(model: nn.Module, on: bool) -> Iterator[None]:
    """Turn activation checkpointing on or off; restore it on exit."""
    before = {part: part.checkpointing for part in checkpointed(model)}
    for part in before:
        part.checkpointing = on  # type: ignore[assignment]
    try:
        yield
    finally:
        for part, was in before.items():
            part.checkpointing = was


def checkpointed(model: nn.Module) -> list[nn.Module]:
    """Return the networks that support checkpointing."""
    return [part for part in model.modules() if isinstance(getattr(part, "checkpointing", None), bool)]
