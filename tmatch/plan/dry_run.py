"""A dry run of the sampler: networks that compute nothing record how they are called."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from tmatch.distribution import TokenDistribution
from tmatch.head import TimeCache
from tmatch.model import Model
from tmatch.plan.training import others
from tmatch.sampling import SamplingParams
from tmatch.solver import Euler


@dataclass
class Call:
    """Calls of equal cost: the arguments of the first, their number, and the cached tokens summed over them."""

    kind: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    count: int = 0
    filled: int = 0


@dataclass
class FakeCache:
    """A KV cache that only counts its tokens."""

    arguments: tuple[Any, ...]
    filled: int = 0


class Prepared(NamedTuple):
    """What the stand-in for a head prepares: its arguments."""

    h: Tensor
    t: Tensor | None
    cache: TimeCache | None


class DryRun:
    """A copy of a model whose networks record their calls and return tensors of the right shapes.

    Calls are grouped by kind, by shape, by whether there is a cache and by whether it is warm. The head is called once
    per transition and token, and recorded as often as the solver of that call evaluates it.
    """

    def __init__(self, model: Model) -> None:
        self.model = deepcopy(model)
        self._calls: dict[Any, Call] = {}
        self._nfe = 1
        kernel = self.model.kernel
        stand_ins: list[tuple[nn.Module | None, str, Any]] = [
            (kernel.backbone, "forward", self._backbone), (kernel.backbone, "init_cache", self._init_cache),
            (kernel.head, "prepare", self._prepare), (kernel.head, "forward", self._velocity),
        ]  # fmt: skip
        for network, name, stand_in in stand_ins:
            if network is not None:
                setattr(network, name, stand_in)
        if kernel.head is not None and kernel.distribution is not None:
            kernel.distribution.forward = partial(self._sample, kernel.distribution.forward)  # type: ignore[method-assign]
        for layer in others(kernel):
            layer.register_forward_hook(self._other)

    def calls(self, kind: str) -> list[Call]:
        """Return the calls of one kind: "cache", "backbone", "prepare", "head" or "other"."""
        return [call for call in self._calls.values() if call.kind == kind]

    def _record(self, kind: str, key: object, *args: Any, **named: Any) -> Call:  # noqa: ANN401
        call = self._calls.setdefault((kind, key), Call(kind, args, named))
        call.count += 1
        return call

    def _init_cache(self, t: Any, condition: Any, batch: int, length: int) -> FakeCache:  # noqa: ANN401
        return FakeCache(self._record("cache", (batch, length), t, condition, batch, length).args)

    def _backbone(self, x: Tensor, t: Any = None, condition: Any = None, **named: Any) -> Tensor:  # noqa: ANN401
        cache = named.get("cache")
        call = self._record("backbone", (x.shape, cache is None), x, t, condition, **named)
        if cache is not None:
            call.filled += cache.filled
            cache.filled += x.shape[1]
        return x.new_empty((*x.shape[:-1], cast("int", self.model.kernel.backbone.width)))

    def _prepare(self, h: Tensor, t: Tensor | None, cache: TimeCache | None = None) -> Prepared:
        self._record("prepare", h.shape, h, t)
        return Prepared(h, t, cache)

    def _sample(
        self, sample: Callable[..., Tensor], noise: Tensor, h: Tensor, t: Tensor | None, params: SamplingParams,
        *rest: Any,  # noqa: ANN401
    ) -> Tensor:  # fmt: skip
        """Sample with one evaluation of the head, which stands for all."""
        self._nfe = cast("TokenDistribution", self.model.kernel.distribution).nfe(params) or 0
        return sample(noise, h, t, replace(params, solver=Euler(1)), *rest)

    def _velocity(self, y: Tensor, s: Tensor, context: Prepared, r: Tensor | None = None) -> Tensor:
        """A cache is warm at the times it has seen; solvers evaluate at equal distances."""
        for s_k in (k / self._nfe for k in range(self._nfe)):
            warm = context.cache is not None and s_k in context.cache
            self._record("head", (y.shape, warm), y, s, context, warm=warm)
            if context.cache is not None:
                context.cache[s_k] = None
        return torch.empty_like(y)

    def _other(self, layer: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
        self._record("other", (layer, *(x.shape for x in args)), *args, layer=layer)
