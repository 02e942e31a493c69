"""What a training step takes: parameters, FLOPs by part, and what is alive between forward and backward."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tmatch.condition import Condition
from tmatch.kernel import Kernel
from tmatch.model import Model
from tmatch.plan.gpu import GPUSimulationMode
from tmatch.plan.meter import PeakMemoryMode, backward, checkpointing, gradients
from tmatch.rng import RandomStreams
from tmatch.tensors import Precision

Shape = Sequence[int]
"""(*grid, channels) of a state."""
Text = tuple[int, int]
"""(length, width) of the text embedding of an image."""
Parts = dict[str, int]
"""A number for the backbone, one for the head, and one for what is in neither."""


@dataclass(frozen=True)
class Activations:
    """Bytes: what forward `kept` for backward, the `peak` of the step, and the bfloat16 `copies` of weights beside it.

    The peak has what backward makes on its way, the gradient of one weight at a time included, where the gradients
    themselves, the weights and their copies have places of their own.
    """

    kept: int
    peak: int
    copies: int


def parameters(model: Model, learnt: bool = False) -> Parts:
    """Numbers by part; with `learnt` those alone that training changes."""
    backbone, head, all_of_it = (_size(part, learnt) for part in (model.kernel.backbone, model.kernel.head, model))
    return {"backbone": backbone, "head": head, "other": all_of_it - backbone - head}


def _size(module: nn.Module | None, learnt: bool) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters() if p.requires_grad or not learnt)


def condition_of(text: Text | None, batch: int) -> Condition | None:
    """A text embedding of which only the shape is known."""
    return None if text is None else Condition.dense(torch.empty(batch, *text, device="meta"))


def loss_of(model: Model, shape: Shape, text: Text | None, batch: int) -> Tensor:
    """Algorithm 1, on a batch of which only the shape is known."""
    x_T = torch.empty(batch, *shape, device="meta")
    return model.loss(x_T, RandomStreams(range(batch), "meta"), condition_of(text, batch)).mean()


def flops(model: Model, shape: Shape, text: Text | None, batch: int) -> Parts:
    """Of forward and backward, by part, as FlopCounterMode counts them: two for each multiplication of a product.

    The counter knows the backbone by its class. Layers in neither network (read-outs, embeddings) are measured by
    themselves, and the head is what is left.
    """
    kernel, counter = model.kernel, FlopCounterMode(display=False)
    calls: list[tuple[nn.Module, tuple[Tensor, ...]]] = []  # of the other layers
    with ExitStack() as hooks:
        for part in others(kernel):
            note = part.register_forward_hook(lambda part, args, _: calls.append((part, args)))
            hooks.callback(note.remove)
        with counter, GPUSimulationMode(), gradients(model):
            backward(loss_of(model, shape, text, batch))
    backbone = sum(counter.get_flop_counts()[type(kernel.backbone).__name__].values())
    rest = counter.get_total_flops() - backbone
    other = rest if kernel.head is None else sum(_alone(part, args) for part, args in calls)
    return {"backbone": backbone, "head": rest - other, "other": other}


def others(kernel: Kernel) -> list[nn.Module]:
    """The layers that are neither in the backbone nor in the head."""
    networks = [network for network in (kernel.backbone, kernel.head) if network is not None]
    within = {part for network in networks for part in network.modules()}
    return [part for part in kernel.modules() if part not in within and not list(part.children())]


def _alone(part: nn.Module, args: tuple[Tensor, ...]) -> int:
    """FLOPs of a layer by itself, forward and backward."""
    inputs = [x.detach().requires_grad_(x.requires_grad) for x in args]
    with FlopCounterMode(display=False) as counter, gradients(part):
        out = part(*inputs)
        if out.requires_grad:
            backward(out)
    return counter.get_total_flops()


def activations(
    model: Model, shape: Shape, text: Text | None, batch: int, precision: Precision, checkpoint: bool
) -> Activations:
    """What is alive in a step of a batch, beyond weights and gradients; each storage counts once, and parameters not.

    Eager execution, by the sizes of tensors: an allocator's rounding and fragments come on top, and a compiler may keep
    less.
    """
    alive, gpu = PeakMemoryMode(), GPUSimulationMode(autocast=precision == "bfloat16")
    with checkpointing(model, checkpoint), gradients(model), alive, gpu:
        loss = loss_of(model, shape, text, batch)
        kept = alive.now - gpu.copies
        backward(loss)
    return Activations(kept, alive.peak - gpu.copies, gpu.copies)
