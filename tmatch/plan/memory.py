"""What each rank must hold: all of it under DDP, a share of it under FSDP2."""

from dataclasses import asdict, dataclass

from torch import nn

from tmatch.model import Model
from tmatch.plan.devices import width
from tmatch.plan.training import Activations
from tmatch.tensors import Precision

FLOAT32 = 4


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank: float32 weights, gradients, AdamW's two moments and the averaged weights; and in use.

    `copies` are weights as matrix products read them, and gradients as they come, where those are not the ones above.
    """

    weights: int
    gradients: int
    moments: int
    average: int
    copies: int
    activations: int

    @property
    def states(self) -> int:
        """What does not depend on what is computed."""
        return self.weights + self.gradients + self.moments + self.average

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def replicated(model: nn.Module, activations: Activations) -> Memory:
    """DDP: every rank holds everything, and the copies are autocast's.

    Gradients are views of DDP's buckets (`gradient_as_bucket_view=True`); else those would hold them once more.
    """
    return _states(model, 1, activations.copies, activations.peak)


def sharded(model: Model, activations: Activations, ranks: int, precision: Precision, accumulate: int = 1) -> Memory:
    """FSDP2: every rank holds 1/N of the states, and gathers a block's weights when it is their turn.

    Where several parts of a batch are accumulated, it keeps all gradients whole, in float32, until the last of them.
    """
    learnt = sum(p.numel() for p in model.parameters() if p.requires_grad)
    collected = FLOAT32 * learnt if accumulate > 1 else 0
    return _states(model, ranks, gathered(model, precision) + collected, activations.peak)


def _states(model: nn.Module, ranks: int, copies: int, activations: int) -> Memory:
    learnt = -(-sum(p.numel() for p in model.parameters() if p.requires_grad) // ranks)
    weights = -(-sum(p.numel() for p in model.parameters()) // ranks)
    return Memory(
        weights=FLOAT32 * weights,
        gradients=FLOAT32 * learnt,
        moments=2 * FLOAT32 * learnt,
        average=FLOAT32 * weights,
        copies=copies,
        activations=activations,
    )


def gathered(model: Model, precision: Precision) -> int:
    """Bytes of whole weights that FSDP2 has at a time, and of their gradients, in the precision of the products.

    Of the units one is computed and the next on its way; all else is the root's, which stays.
    """
    units = sorted(_with_gradients(unit) for unit in model.kernel.fsdp_modules())
    root = _with_gradients(model) - sum(units)
    return width(precision) * (root + sum(units[-2:]))


def _with_gradients(module: nn.Module) -> int:
    return sum(p.numel() * (2 if p.requires_grad else 1) for p in module.parameters())
