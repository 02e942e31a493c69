"""The cost of a training step: parameters, FLOPs and activations."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tmatch.condition import Condition
from tmatch.kernel import Kernel
from tmatch.model import Model
from tmatch.plan.gpu import GPUSimulationMode
from tmatch.plan.meter import PeakMemoryMode, backward
from tmatch.rng import RandomStreams
from tmatch.tensors import Precision

StateShape = Sequence[int]
"""(*grid, channels) of a state."""
Text = tuple[int, int]
"""(length, width) of the text embedding of an image."""
PerNetwork = dict[str, int]
"""A number for the backbone, for the head, and for the layers in neither."""


@dataclass(frozen=True)
class Activations:
    """Bytes `kept` for the backward pass, the `peak` of the step, and bfloat16 `copies` of weights.

    The peak includes temporary tensors of the backward pass, but not the weights, their copies and their gradients.
    """

    kept: int
    peak: int
    copies: int


def parameters(model: Model, trained: bool = False) -> PerNetwork:
    """Count parameters; with `trained`, only those that require gradients."""
    backbone, head, total = (_size(part, trained) for part in (model.kernel.backbone, model.kernel.head, model))
    return {"backbone": backbone, "head": head, "other": total - backbone - head}


def _size(module: nn.Module | None, trained: bool) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)


def condition_of(text: Text | None, batch: int) -> Condition | None:
    """Return a text embedding on the meta device."""
    return None if text is None else Condition.dense(torch.empty(batch, *text, device="meta"))


def loss_of(model: Model, shape: StateShape, text: Text | None, batch: int) -> Tensor:
    """Return the loss of Algorithm 1 on a batch on the meta device."""
    x_T = torch.empty(batch, *shape, device="meta")
    return model.loss(x_T, RandomStreams(range(batch), "meta"), condition_of(text, batch)).mean()


def flops(model: Model, shape: StateShape, text: Text | None, batch: int) -> PerNetwork:
    """Count FLOPs of the forward and backward pass with FlopCounterMode: two per multiplication of a matrix product.

    The counter identifies the backbone by its class. Layers in neither network (readouts, embeddings) are measured
    separately; the remainder is the head's.
    """
    model = _copy(model)
    kernel, counter = model.kernel, FlopCounterMode(display=False)
    calls: list[tuple[nn.Module, tuple[Tensor, ...]]] = []  # of layers in neither network
    for part in others(kernel):
        part.register_forward_hook(lambda part, args, _: calls.append((part, args)))
    with counter, GPUSimulationMode():
        backward(loss_of(model, shape, text, batch))
    backbone = sum(counter.get_flop_counts()[type(kernel.backbone).__name__].values())
    rest = counter.get_total_flops() - backbone
    other = rest if kernel.head is None else sum(_alone(part, args) for part, args in calls)
    return {"backbone": backbone, "head": rest - other, "other": other}


def _copy(model: Model, checkpoint: bool | None = None) -> Model:
    """Return a copy with gradients, to which the backward pass adds, and with or without checkpointing."""
    model = deepcopy(model)
    for p in model.parameters():
        p.grad = torch.empty_like(p) if p.requires_grad else None
    for part in [] if checkpoint is None else checkpointed(model):
        part.checkpointing = checkpoint  # type: ignore[assignment]
    return model


def checkpointed(model: nn.Module) -> list[nn.Module]:
    """Return the networks that support checkpointing."""
    return [part for part in model.modules() if isinstance(getattr(part, "checkpointing", None), bool)]


def others(kernel: Kernel) -> list[nn.Module]:
    """Return the layers in neither the backbone nor the head."""
    networks = [network for network in (kernel.backbone, kernel.head) if network is not None]
    within = {part for network in networks for part in network.modules()}
    return [part for part in kernel.modules() if part not in within and not list(part.children())]


def _alone(part: nn.Module, args: tuple[Tensor, ...]) -> int:
    """Count FLOPs of the forward and backward pass of one layer."""
    inputs = [x.detach().requires_grad_(x.requires_grad) for x in args]
    with FlopCounterMode(display=False) as counter:
        out = part.forward(*inputs)
        if out.requires_grad:
            backward(out)
    return counter.get_total_flops()


def activations(
    model: Model, shape: StateShape, text: Text | None, batch: int, precision: Precision, checkpoint: bool
) -> Activations:
    """Measure the live bytes of a training step beyond weights and gradients.

    Tensor sizes in eager execution: an allocator adds fragmentation, and a compiler may keep less.
    """
    model, alive, gpu = _copy(model, checkpoint), PeakMemoryMode(), GPUSimulationMode(precision == "bfloat16")
    with alive, gpu:
        loss = loss_of(model, shape, text, batch)
        kept = alive.now - gpu.copies
        backward(loss)
    return Activations(kept, alive.peak - gpu.copies, gpu.copies)
