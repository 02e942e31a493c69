"""From a model and seeds to samples."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn

from tmatch.condition import Condition
from tmatch.kernel import Kernel
from tmatch.model import Model
from tmatch.rng import RandomStreams
from tmatch.sampler import Sampler
from tmatch.sampling import Callback, SamplingParams, Snapshot
from tmatch.tensors import Precision, State, autocast_kind, matmul_precision, positive_int
from tmatch.times import Steps, time_grid


@dataclass
class Evaluations:
    """Network evaluations per image; a guided evaluation computes both branches and counts as one."""

    backbone: int = 0
    head: int = 0


@dataclass(frozen=True)
class Generation:
    """Samples, one per seed, with their cost, and their `path` on request."""

    x: State
    evaluations: Evaluations
    seconds: float
    path: list[Snapshot] = field(default_factory=list)


@contextmanager
def counting(kernel: Kernel, params: SamplingParams) -> Iterator[Evaluations]:
    """Count the network evaluations that this thread makes.

    Head evaluations follow from the calls of the distribution where each makes a known number, since calls inside a
    compiled function are invisible; the number is that of the params of the call.
    """
    count, thread, distribution = Evaluations(), threading.get_ident(), kernel.distribution

    def add(name: str, calls: int) -> None:
        if threading.get_ident() == thread:
            setattr(count, name, getattr(count, name) + calls)

    hooks = [kernel.backbone.register_forward_hook(lambda *_: add("backbone", 1))]
    if distribution is not None and kernel.head is not None:
        if distribution.nfe(params) is None:
            hooks.append(kernel.head.register_forward_hook(lambda *_: add("head", 1)))
        else:
            nfe = distribution.nfe
            hooks.append(distribution.register_forward_hook(lambda _, args, __: add("head", nfe(args[3]) or 0)))
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode, then restore the mode of each submodule."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def sampling_precision(precision: Precision, model: nn.Module, device: torch.device) -> Iterator[None]:
    """`matmul_precision` that casts each weight once: autocast caches casts only of weights that require gradients."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point() and not weight.is_inference()]
    coarse = precision == "bfloat16" or torch.is_autocast_enabled(autocast_kind(device))
    frozen = [weight for weight in weights if coarse and not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_()
        with matmul_precision(precision, device):
            yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def generate(
    model: Model, shape: Sequence[int], seeds: Sequence[int], condition: Condition | None = None, *,
    steps: Steps | None = None, params: SamplingParams = SamplingParams(), sampler: Sampler = Sampler(),
    callback: Callback | None = None, batch_size: int = 64, progress: bool = False, keep_path: bool = False,
    precision: Precision = "float32",
) -> Generation:  # fmt: skip
    """One sample of `shape` (*grid, channels) per seed; the batch size changes only the rounding of matrix products.

    An adaptive solver shares its steps among a batch, so that there a sample depends on the batch within the tolerance.

    `precision` applies to these products; states stay in float32.
    """
    require_seeds(seeds, steps)
    if not isinstance(condition, Condition | None):
        raise ValueError("condition must be a Condition: embed labels or text, as in Condition.dense(tokens).")
    condition = None if condition is None else condition.repeated(len(seeds))
    batches = [slice(i, i + batch_size) for i in range(0, len(seeds), positive_int("batch_size", batch_size))]
    weight = next(model.kernel.parameters(), torch.empty(0))
    dtype = torch.promote_types(weight.dtype, torch.float32)  # a coarser state would lose small steps
    watched = progress or keep_path or callback is not None  # without it the model computes no snapshots
    started = time.perf_counter()
    results: list[Generation] = []
    bar = Progress(console=Console(stderr=True), disable=not progress, transient=True)
    with bar, sampling_precision(precision, model, weight.device):
        task = bar.add_task("sampling", total=model.transitions(steps, sampler) * len(batches))
        for images in batches:
            rng = RandomStreams(seeds[images], weight.device, dtype)
            given = None if condition is None else condition[images]
            path: list[Snapshot] = []

            def observe(snapshot: Snapshot, path: list[Snapshot] = path) -> None:
                bar.advance(task, snapshot.kind == "transition")
                if keep_path:
                    path.append(snapshot)
                if callback is not None:
                    callback(snapshot)

            options = replace(params, guidance=params.guidance.of(images, len(seeds)))
            with counting(model.kernel, options) as evaluations, evaluating(model):
                x = model.sample(
                    shape, rng, given, steps, options, sampler=sampler, callback=observe if watched else None
                )
            results.append(Generation(x, evaluations, 0.0, path))
    return _concatenate(results, time.perf_counter() - started)


def require_seeds(seeds: Sequence[int], steps: Steps | None = None) -> None:
    """Reject seeds that are not one integer per image, and steps that do not end at t = 1."""
    if not hasattr(seeds, "__len__"):
        raise ValueError(
            f"seeds must be a list of integers, one per image, not {seeds!r}; pass range(4) for four images. Each seed "
            "determines its image, so no torch.Generator is needed."
        )
    if len(seeds) == 0:
        raise ValueError("seeds is empty; pass one seed per image.")
    if steps is not None and time_grid(steps)[-1] != 1:
        raise ValueError("The times must end at t = 1 to give samples; use model.sample to stop earlier.")


def _concatenate(batches: list[Generation], seconds: float) -> Generation:
    def joined(parts: Sequence[Snapshot]) -> Snapshot:
        names = [name for name in ("x_t", "estimate", "known") if getattr(parts[0], name) is not None]
        states: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **states)

    path = [joined(parts) for parts in zip(*(batch.path for batch in batches), strict=True)]
    counts = [batch.evaluations for batch in batches]
    evaluations = Evaluations(max(c.backbone for c in counts), max(c.head for c in counts))
    return Generation(torch.cat([batch.x for batch in batches]), evaluations, seconds, path)
