"""From a model and seeds to samples."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn

from tmatch.condition import Condition
from tmatch.distribution import Flow
from tmatch.kernel import Kernel
from tmatch.model import Model
from tmatch.rng import RandomStreams
from tmatch.sampling import SamplingParams, Snapshot
from tmatch.solver import FixedStep, Solver
from tmatch.tensors import Precision, State, autocast_kind, matmul_precision, positive_int
from tmatch.times import Steps, time_grid


@dataclass
class Evaluations:
    """How often the networks were called for one image; a guided call evaluates both branches at once."""

    backbone: int = 0
    head: int = 0


@dataclass(frozen=True)
class Generation:
    """Samples, one a seed, and what they took; `path` is there on request."""

    x: State
    evaluations: Evaluations
    seconds: float
    path: list[Snapshot] = field(default_factory=list)


@contextmanager
def counting(kernel: Kernel, solver: Solver) -> Iterator[Evaluations]:
    """Counts the calls of a kernel's networks that this thread makes.

    Those of a head by the solves where each takes a known number, for inside a compiled one no call can be seen.
    """
    count, thread = Evaluations(), threading.get_ident()

    def bump(name: str, calls: int) -> None:
        if threading.get_ident() == thread:
            setattr(count, name, getattr(count, name) + calls)

    networks: list[tuple[str, nn.Module, int]] = [("backbone", kernel.backbone, 1)]
    flows = [part for part in kernel.modules() if isinstance(part, Flow)]
    if flows and isinstance(solver, FixedStep):
        networks += [("head", flow, solver.calls) for flow in flows]
    elif kernel.head is not None:
        networks.append(("head", kernel.head, 1))
    hooks = [
        network.register_forward_hook(lambda *_, name=name, calls=calls: bump(name, calls))
        for name, network, calls in networks
    ]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and the like, which would draw from a global generator; each part is then as it was."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def sampling_precision(precision: Precision, model: nn.Module, device: torch.device) -> Iterator[None]:
    """`matmul_precision`, casting each weight once: autocast caches only the copies of weights that require gradients."""
    cast = [weight for weight in model.parameters() if weight.is_floating_point() and not weight.is_inference()]
    coarse = precision == "bfloat16" or torch.is_autocast_enabled(autocast_kind(device))
    frozen = [weight for weight in cast if coarse and not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_()
        with matmul_precision(precision, device):
            yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def generate(
    model: Model,
    shape: Sequence[int],
    seeds: Sequence[int],
    condition: Condition | None = None,
    *,
    steps: Steps | None = None,
    params: SamplingParams = SamplingParams(),
    batch_size: int = 64,
    progress: bool = False,
    keep_path: bool = False,
    precision: Precision = "float32",
) -> Generation:
    """One sample of `shape` (*grid, channels) for each seed: in float32 the same one whatever the batch size.

    `precision` is that of matrix products, and the states are float32 in each. The coarser ones round differently in
    batches of another size.
    """
    _require(seeds, steps)
    condition = None if condition is None else condition.repeated(len(seeds))
    batches = [slice(i, i + batch_size) for i in range(0, len(seeds), positive_int("The batch size", batch_size))]
    weight = next(model.kernel.parameters(), torch.empty(0))
    dtype = torch.promote_types(weight.dtype, torch.float32)  # a coarser state would lose the small steps
    watched = progress or keep_path or params.observe is not None
    started = time.perf_counter()
    results: list[Generation] = []
    bar = Progress(console=Console(stderr=True), disable=not progress, transient=True)
    with bar, sampling_precision(precision, model, weight.device):
        task = bar.add_task("sampling", total=model.transitions(steps) * len(batches))
        for images in batches:
            rng = RandomStreams(seeds[images], weight.device, dtype)
            given = None if condition is None else condition[images]
            path: list[Snapshot] = []

            def observe(fixed_time: Snapshot, path: list[Snapshot] = path) -> None:
                bar.advance(task, fixed_time.kind == "transition")
                if keep_path:
                    path.append(fixed_time)
                params.report(fixed_time)

            how = replace(params, guidance=params.guidance.of(images, len(seeds)), observe=observe if watched else None)
            with counting(model.kernel, how.solver) as evaluations, evaluating(model):
                x = model.sample(shape, rng, given, steps, how)
            results.append(Generation(x, evaluations, 0.0, path))
    return _joined(results, time.perf_counter() - started)


def _require(seeds: Sequence[int], steps: Steps | None) -> None:
    """Refuse what gives no samples."""
    if len(seeds) == 0:
        raise ValueError("Give at least one seed: there is one sample for each.")
    if steps is not None and time_grid(steps)[-1] != 1:
        raise ValueError(
            "Samples are states at t = 1: let the times end there, or use `model.sample` for a part of the way."
        )


def _joined(batches: list[Generation], seconds: float) -> Generation:
    def cat(states: Sequence[State | None]) -> State | None:
        given = [x for x in states if x is not None]
        return torch.cat(given) if given else None

    path = [
        replace(
            moments[0],
            x_t=torch.cat([m.x_t for m in moments]),
            estimate=cat([m.estimate for m in moments]),
            known=cat([m.known for m in moments]),
        )
        for moments in zip(*(batch.path for batch in batches), strict=True)
    ]
    counts = [batch.evaluations for batch in batches]
    evaluations = Evaluations(max(c.backbone for c in counts), max(c.head for c in counts))
    return Generation(torch.cat([batch.x for batch in batches]), evaluations, seconds, path)
