"""A dry run of the sampler: networks that compute nothing record how they are called."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from tmatch.head import TimeCache
from tmatch.kernel import Kernel
from tmatch.plan.training import others


@dataclass
class Call:
    """Calls of equal cost: the arguments of the first, their number, and the cached tokens summed over them."""

    args: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    filled: int = 0


@dataclass
class FakeCache:
    """A KV cache that only counts its tokens."""

    arguments: tuple[Any, ...]
    filled: int = 0


@dataclass(frozen=True)
class Prepared:
    """What the stand-in for a head prepares: its arguments."""

    h: Tensor
    t: Tensor | None
    cache: TimeCache | None


@dataclass
class CallLog:
    """The calls of the networks, grouped by shape, by whether there is a cache and by whether it is warm."""

    caches: dict[Any, Call] = field(default_factory=dict)
    backbone: dict[Any, Call] = field(default_factory=dict)
    preparations: dict[Any, Call] = field(default_factory=dict)
    head: dict[Any, Call] = field(default_factory=dict)
    other: dict[Any, Call] = field(default_factory=dict)

    def init_cache(self, t: Any, condition: Any, batch: int, length: int) -> FakeCache:  # noqa: ANN401
        """Stand in for `init_cache` of the backbone."""
        args = (t, condition, batch, length)
        self.caches.setdefault((batch, length), Call(args)).count += 1
        return FakeCache(args)

    def record_backbone(self, x: Tensor, t: Any = None, condition: Any = None, **named: Any) -> None:  # noqa: ANN401
        """Record a call of the backbone."""
        cache = named.get("cache")
        call = self.backbone.setdefault((x.shape, cache is None), Call((x, t, condition), named))
        call.count += 1
        if cache is not None:
            call.filled += cache.filled
            cache.filled += x.shape[1]

    def prepare(self, h: Tensor, t: Tensor | None, cache: TimeCache | None = None) -> Prepared:
        """Stand in for `prepare` of the head."""
        self.preparations.setdefault(h.shape, Call((h, t))).count += 1
        return Prepared(h, t, cache)

    def velocity(self, y: Tensor, s: Tensor, context: Prepared, r: Tensor | None = None) -> Tensor:
        """Stand in for the head; a cache is warm after its first call."""
        warm = bool(context.cache)
        self.head.setdefault((y.shape, warm), Call((y, s, context))).count += 1
        if context.cache is not None:
            context.cache[float(s)] = None
        return torch.empty_like(y)

    def record_other(self, layer: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
        """Record a call of a layer that is in neither network."""
        key = (layer, *(x.shape for x in args))
        self.other.setdefault(key, Call(args, {"layer": layer})).count += 1


@contextmanager
def dry_run(kernel: Kernel) -> Iterator[CallLog]:
    """Replace the networks by stand-ins that record their calls and return tensors of the right shapes."""
    log, backbone, head = CallLog(), kernel.backbone, kernel.head

    def forward(x: Tensor, *args: Any, **named: Any) -> Tensor:  # noqa: ANN401
        log.record_backbone(x, *args, **named)
        return x.new_empty((*x.shape[:-1], cast("int", backbone.width)))

    replaced: list[tuple[nn.Module, str, Any]] = [
        (backbone, "forward", forward),
        (backbone, "init_cache", log.init_cache),
    ]
    if head is not None:
        replaced += [(head, "prepare", log.prepare), (head, "forward", log.velocity)]
    for network, name, stand_in in replaced:
        setattr(network, name, stand_in)  # on the instance, which shadows the class
    hooks = [layer.register_forward_hook(log.record_other) for layer in others(kernel)]
    try:
        yield log
    finally:
        for hook in hooks:
            hook.remove()
        for network, name, _ in replaced:
            delattr(network, name)
