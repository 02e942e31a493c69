"""What drawing one image takes: how often each network is called, and what a call costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn

from tmatch.backbone import SequenceBackbone
from tmatch.guidance import ClassifierFreeGuidance, NoGuidance
from tmatch.head import Head, TimeCache
from tmatch.model import Model
from tmatch.plan.dry_run import Call, CallLog, rehearsing
from tmatch.plan.meter import Cost, cost
from tmatch.plan.training import Shape, Text, condition_of
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams, Unmasking
from tmatch.solver import Euler
from tmatch.tensors import positive_int
from tmatch.times import Steps


@dataclass(frozen=True)
class Draw:
    """How an image is drawn: transitions (None for the model's own), head steps in each, and with guidance or without.

    Guidance evaluates two branches in one batch, so it needs a text. `iterations` are those of masked kernels (None for
    a token each), and so many `images` are drawn at once.
    """

    steps: Steps | None = None
    head_steps: int = 4
    guided: bool = True
    iterations: int | None = None
    images: int = 1


@dataclass(frozen=True)
class Calls:
    """So many calls of a network, of one cost each: its `evaluations`, or what is done once for many of them."""

    network: str
    evaluations: bool
    count: int
    each: Cost


@dataclass(frozen=True)
class Sampling:
    """All calls of the backbone, of the head and of the layers in neither while the images of a `draw` come about."""

    draw: Draw
    transitions: int
    calls: tuple[Calls, ...]

    def evaluations(self, network: str) -> int:
        """How often a network is evaluated, as `generate` counts: a guided call evaluates both branches at once."""
        return sum(calls.count for calls in self.calls if calls.network == network and calls.evaluations)

    def flops(self, network: str) -> int:
        """All that a network computes."""
        return sum(calls.count * calls.each.flops for calls in self.calls if calls.network == network)


def sampling(model: Model, shape: Shape, text: Text | None, draw: Draw = Draw()) -> Sampling:
    """Count calls by letting the sampler itself run on networks that do nothing, then measure one call of each kind."""
    if draw.guided and text is None:
        raise ValueError("Guidance pushes towards a text, and this model reads none: plan with Draw(guided=False).")
    head_steps, kernel = positive_int("The number of head steps", draw.head_steps), model.kernel
    with rehearsing(kernel) as script:
        _sample(model, shape, text, draw)
    calls = [*_backbone_calls(kernel.backbone, script)]
    if kernel.head is not None:
        calls += _head_calls(kernel.head, script, head_steps)
    for asked in script.other.values():
        calls.append(Calls("other", True, asked.count, cost(partial(asked.named["layer"], *asked.args), kernel)))
    return Sampling(draw, model.transitions(draw.steps), tuple(calls))


def _sample(model: Model, shape: Shape, text: Text | None, draw: Draw) -> None:
    """Algorithm 2 with one head step, for the others are like it."""
    images = positive_int("The number of images", draw.images)
    null = condition_of(text, 1)
    guidance = NoGuidance() if null is None or not draw.guided else ClassifierFreeGuidance(null)
    params = SamplingParams(Euler(1), guidance, Unmasking(draw.iterations))
    model.sample(shape, RandomStreams(range(images), "meta"), condition_of(text, images), draw.steps, params)


def _backbone_calls(backbone: nn.Module, script: CallLog) -> Iterator[Calls]:
    """Reading the condition for a cache, and reading tokens."""
    for asked in script.openings.values():
        each = cost(partial(cast("SequenceBackbone", backbone).init_cache, *asked.args), backbone)
        yield Calls("backbone", False, asked.count, each)
    for asked in script.backbone.values():
        yield Calls("backbone", True, asked.count, _reading(backbone, asked))


def _reading(backbone: nn.Module, asked: Call) -> Cost:
    """Of tokens, into a cache as full as on average: attention grows linearly with it, so that is the average cost."""
    book = asked.named.get("cache")
    if book is None:
        return cost(partial(backbone, *asked.args, **asked.named), backbone)
    x, before = asked.args[0], round(asked.filled / asked.count)
    with torch.no_grad():
        cache = cast("SequenceBackbone", backbone).init_cache(*book.opened_with)
        if before:
            places = torch.zeros(before, 3, device="meta")
            earlier = x.new_empty(len(x), before, x.shape[-1])
            backbone(earlier, positions=places, prefix=0, cache=cache)
    return cost(partial(backbone, x, **{**asked.named, "cache": cache}), backbone)


def _head_calls(head: Head, script: CallLog, steps: int) -> Iterator[Calls]:
    """What the head does once for all s, and its velocities."""
    for asked in script.preparations.values():
        yield Calls("head", False, asked.count, cost(partial(head.prepare, *asked.args), head))
    for (_, warm), asked in script.head.items():
        y_s, s, given = asked.args
        time_cache = None if given.time_cache is None else TimeCache()
        with torch.no_grad():
            context = head.prepare(given.h, given.t, time_cache)
            if warm:
                head(y_s, s, context)
        yield Calls("head", True, steps * asked.count, cost(partial(head, y_s, s, context), head))
