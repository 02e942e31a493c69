"""Memory per rank under DDP and FSDP2."""

from dataclasses import asdict, dataclass

from torch import nn

from tmatch.model import Model
from tmatch.plan.devices import bytes_per_number
from tmatch.plan.training import Activations, parameters
from tmatch.tensors import Precision

FLOAT32 = 4


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank: float32 weights, gradients, the two moments of AdamW, averaged weights and activations.

    `copies` are weights in the precision of matrix products and unreduced gradients, where these are separate.
    """

    weights: int
    gradients: int
    moments: int
    average: int
    copies: int
    activations: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def replicated(model: Model, activations: Activations) -> Memory:
    """DDP: every rank holds everything; gradients are views of its buckets, and the copies are those of autocast."""
    return _states(model, 1, activations.copies, activations.peak)


def sharded(
    model: Model, activations: Activations, ranks: int, precision: Precision, accumulation_steps: int = 1
) -> Memory:
    """FSDP2: every rank holds 1/N of the states and gathers the weights of one module at a time.

    With gradient accumulation it keeps full float32 gradients until the last micro-batch.
    """
    collected = FLOAT32 * sum(parameters(model, trained=True).values()) if accumulation_steps > 1 else 0
    return _states(model, ranks, gathered(model, precision) + collected, activations.peak)


def _states(model: Model, ranks: int, copies: int, activations: int) -> Memory:
    weights, trained = (FLOAT32 * -(-sum(parameters(model, kind).values()) // ranks) for kind in (False, True))
    return Memory(weights, trained, 2 * trained, weights, copies, activations)


def gathered(model: Model, precision: Precision) -> int:
    """Return the bytes of the full weights that FSDP2 holds at a time, and of their gradients.

    These are the root's, those of the module that is computed, and those of the next one, which is prefetched.
    """
    modules = sorted(_with_gradients(module) for module in model.kernel.fsdp_modules())
    root = _with_gradients(model) - sum(modules)
    return bytes_per_number(precision) * (root + sum(modules[-2:]))


def _with_gradients(module: nn.Module) -> int:
    return sum(p.numel() * (2 if p.requires_grad else 1) for p in module.parameters())
