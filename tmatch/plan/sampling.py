"""The cost of sampling: how often each network is called, and what a call costs."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn

from tmatch.backbone import SequenceBackbone
from tmatch.generation.config import SamplingConfig
from tmatch.head import Head, TimeCache
from tmatch.model import Model
from tmatch.plan.dry_run import Call, DryRun
from tmatch.plan.meter import Cost, cost
from tmatch.plan.training import StateShape, Text, condition_of
from tmatch.rng import RandomStreams
from tmatch.sampler import build_sampler
from tmatch.tensors import positive_int


@dataclass(frozen=True)
class Calls:
    """Calls of a network of equal cost: its `evaluations`, or what is computed once for many of them."""

    network: str
    evaluations: bool
    count: int
    each: Cost


@dataclass(frozen=True)
class SamplingCost:
    """All calls of the backbone, of the head and of other layers while `images` are sampled together."""

    config: SamplingConfig
    guided: bool
    images: int
    transitions: int
    calls: tuple[Calls, ...]

    def evaluations(self, network: str) -> int:
        """Return the evaluations of a network as `generate` counts them: both branches of guidance at once."""
        return sum(calls.count for calls in self.calls if calls.network == network and calls.evaluations)

    def flops(self, network: str) -> int:
        """Return the FLOPs of a network."""
        return sum(calls.count * calls.each.flops for calls in self.calls if calls.network == network)


def sampling_cost(
    model: Model, shape: StateShape, text: Text | None, config: SamplingConfig = SamplingConfig(), images: int = 1
) -> SamplingCost:
    """Count calls in a dry run of the sampler, then measure one call of each kind; no guidance without a text."""
    model = deepcopy(model).eval()  # as `generate` does
    kernel, run, guided = model.kernel, DryRun(model), text is not None and config.guidance != 1
    _sample(run.model, shape, text, config, positive_int("The number of images", images))
    calls = [*_backbone_calls(kernel.backbone, run)]
    if kernel.head is not None and kernel.distribution is not None:
        if kernel.distribution.nfe(config.build()) is None:
            raise ValueError(f"The adaptive solver '{config.solver}' has no fixed cost; plan with a fixed-step solver.")
        calls += _head_calls(kernel.head, run)
    for call in run.calls("other"):
        layer = call.named["layer"]
        calls.append(Calls("other", True, call.count, cost(partial(layer.forward, *call.args), layer)))
    transitions = model.transitions(config.times(model.times), build_sampler(config.sampler))
    return SamplingCost(config, guided, images, transitions, tuple(calls))


def _sample(model: Model, shape: StateShape, text: Text | None, config: SamplingConfig, images: int) -> None:
    """Run Algorithm 2."""
    params = config.build(condition_of(text, 1))
    rng, condition = RandomStreams(range(images), "meta"), condition_of(text, images)
    model.sample(shape, rng, condition, config.times(model.times), params, sampler=build_sampler(config.sampler))


def _backbone_calls(backbone: nn.Module, run: DryRun) -> Iterator[Calls]:
    for call in run.calls("cache"):
        each = cost(partial(cast("SequenceBackbone", backbone).init_cache, *call.args), backbone)
        yield Calls("backbone", False, call.count, each)
    for call in run.calls("backbone"):
        yield Calls("backbone", True, call.count, _backbone_cost(backbone, call))


def _backbone_cost(backbone: nn.Module, call: Call) -> Cost:
    """Measure a call with a KV cache of average length: the cost is linear in the length."""
    fake = call.named.get("cache")
    if fake is None:
        return cost(partial(backbone, *call.args, **call.named), backbone)
    x, before = call.args[0], round(call.filled / call.count)
    with torch.no_grad():
        cache = cast("SequenceBackbone", backbone).init_cache(*fake.arguments)
        if before:
            earlier = x.new_empty(len(x), before, x.shape[-1])
            backbone(earlier, positions=torch.zeros(before, 3, device="meta"), prefix=0, cache=cache)
    return cost(partial(backbone, x, **{**call.named, "cache": cache}), backbone)


def _head_calls(head: Head, run: DryRun) -> Iterator[Calls]:
    """Yield what the head computes once for all s, and its velocities."""
    for call in run.calls("prepare"):
        yield Calls("head", False, call.count, cost(partial(head.prepare, *call.args), head))
    for call in run.calls("head"):
        y, s, prepared = call.args
        with torch.no_grad():
            context = head.prepare(prepared.h, prepared.t, None if prepared.cache is None else TimeCache())
            if call.named["warm"]:
                head(y, s, context)
        yield Calls("head", True, call.count, cost(partial(head, y, s, context), head))
