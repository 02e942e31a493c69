"""The sampler run on networks that do nothing, to learn what it would ask of them."""

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
    """Calls that cost the same: the arguments of the first, how many there were, and how full their caches in all."""

    args: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    filled: int = 0


@dataclass
class FakeCache:
    """A cache that knows how many tokens it was given, and nothing of them."""

    opened_with: tuple[Any, ...]
    filled: int = 0


@dataclass(frozen=True)
class Prepared:
    """What a head that does nothing prepares: what it was given."""

    h: Tensor
    t: Tensor | None
    time_cache: TimeCache | None


@dataclass
class CallLog:
    """What was asked of the networks, by kind of call: by shape, with or without a cache, with a clock new or wound."""

    openings: dict[Any, Call] = field(default_factory=dict)
    backbone: dict[Any, Call] = field(default_factory=dict)
    preparations: dict[Any, Call] = field(default_factory=dict)
    head: dict[Any, Call] = field(default_factory=dict)
    other: dict[Any, Call] = field(default_factory=dict)

    def open(self, t: Any, condition: Any, batch: int, length: int) -> FakeCache:  # noqa: ANN401
        """Stands in for the backbone's `open`."""
        args = (t, condition, batch, length)
        self.openings.setdefault((batch, length), Call(args)).count += 1
        return FakeCache(args)

    def read(self, x: Tensor, t: Any = None, condition: Any = None, **named: Any) -> None:  # noqa: ANN401
        """Notes a call of the backbone."""
        cache = named.get("cache")
        asked = self.backbone.setdefault((x.shape, cache is None), Call((x, t, condition), named))
        asked.count += 1
        if cache is not None:
            asked.filled += cache.filled
            cache.filled += x.shape[1]

    def prepare(self, h: Tensor, t: Tensor | None, time_cache: TimeCache | None = None) -> Prepared:
        """Stands in for the head's `prepare`."""
        self.preparations.setdefault(h.shape, Call((h, t))).count += 1
        return Prepared(h, t, time_cache)

    def velocity(self, y_s: Tensor, s: Tensor, context: Prepared) -> Tensor:
        """Stands in for the head; a clock that has been asked once knows what depends on the time alone."""
        warm = bool(context.time_cache)
        self.head.setdefault((y_s.shape, warm), Call((y_s, s, context))).count += 1
        if context.time_cache is not None:
            context.time_cache[float(s)] = None
        return torch.empty_like(y_s)

    def also(self, layer: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
        """Notes a call of a layer that is in neither network, and does its work."""
        key = (layer, *(x.shape for x in args))
        self.other.setdefault(key, Call(args, {"layer": layer})).count += 1


@contextmanager
def rehearsing(kernel: Kernel) -> Iterator[CallLog]:
    """With stand-ins in the networks' places, which answer in the right shape and note what they were asked."""
    script, backbone, head = CallLog(), kernel.backbone, kernel.head

    def forward(x: Tensor, *args: Any, **named: Any) -> Tensor:  # noqa: ANN401
        script.read(x, *args, **named)
        return x.new_empty((*x.shape[:-1], cast("int", backbone.width)))

    acting: list[tuple[nn.Module, str, Any]] = [(backbone, "forward", forward), (backbone, "init_cache", script.open)]
    if head is not None:
        acting += [(head, "prepare", script.prepare), (head, "forward", script.velocity)]
    for network, name, stand_in in acting:
        setattr(network, name, stand_in)  # on the instance, before the class's own
    hooks = [layer.register_forward_hook(script.also) for layer in others(kernel)]
    try:
        yield script
    finally:
        for hook in hooks:
            hook.remove()
        for network, name, _ in acting:
            delattr(network, name)
