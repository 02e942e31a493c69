"""Classifier-free guidance, as a wrapper around any conditional prediction."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from tmatch.condition import Condition
from tmatch.solver import Velocity
from tmatch.tensors import State, Time, expand_time, require_finite


@dataclass(frozen=True)
class Branches:
    """The conditions to evaluate in one batched pass, and the weight of each in the result.

    `rescale` moves the norm of each guided token from its own (0) to that of the first branch (1).
    """

    conditions: tuple[Condition | None, ...]
    weights: tuple[float, ...]
    rescale: float = 0.0

    def stack(self, x: Tensor) -> Tensor:
        """x, repeated for each branch."""
        return x if len(self.weights) == 1 else torch.cat([x] * len(self.weights))

    def inputs(self, x_t: State, t: Time | None) -> tuple[State, Time | None, Condition | None]:
        """The backbone's inputs; t is None for kernels that have no time."""
        given = [c.repeated(len(x_t)) for c in self.conditions if c is not None]
        condition = (given[0] if len(given) == 1 else Condition.cat(given)) if given else None
        return self.stack(x_t), None if t is None else self.stack(expand_time(t, x_t)), condition

    def mix(self, v: Tensor) -> Tensor:
        """The weighted sum over branches, with the norm of each token (..., channels) rescaled."""
        guided = self.weighted_sum(v)
        if self.rescale == 0 or len(self.weights) == 1:
            return guided
        given, own = (x.norm(dim=-1, keepdim=True) for x in (v.chunk(len(self.weights))[0], guided))
        return guided * (own.lerp(given, self.rescale) / own.clamp(min=1e-12))

    def weighted_sum(self, v: Tensor) -> Tensor:
        """The weighted sum over branches as it is: for logits, which have no norm, being equal up to a constant."""
        if len(self.weights) == 1:
            return v
        return reduce(torch.add, (w * part for w, part in zip(self.weights, v.chunk(len(self.weights)), strict=True)))

    def guide(self, velocity: Velocity) -> Velocity:
        """The guided velocity: every branch is evaluated at the same y_s."""
        return lambda s, y_s: self.mix(velocity(s, self.stack(y_s)))


class Guidance(ABC):
    """Decides which branches to evaluate during sampling."""

    @abstractmethod
    def at(self, progress: float, condition: Condition | None, keep_all: bool = False) -> Branches:
        """The branches at `progress` in [0, 1]: the time t, which advances within a transition where tokens do.

        Branches of zero weight are omitted, unless a kernel with a cache per branch sets `keep_all`.
        """

    def of(self, images: slice, total: int) -> "Guidance":
        """The guidance for a slice of `total` images."""
        return self


@dataclass(frozen=True)
class NoGuidance(Guidance):
    """The conditional prediction, unchanged."""

    def at(self, progress: float, condition: Condition | None, keep_all: bool = False) -> Branches:
        return Branches((condition,), (1.0,))


GUIDANCE_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "rising": lambda progress: progress,  # from no guidance to the full scale: MAR's "linear"
    "falling": lambda progress: 1.0 - progress,  # from the full scale to no guidance: NextStep's "linear"
}


def require_interval(interval: tuple[float, float]) -> None:
    """Raise unless these are two times in order."""
    low, high = interval
    if not 0 <= low <= high <= 1:
        raise ValueError(f"The guidance interval must satisfy 0 <= low <= high <= 1; got {interval}.")


@dataclass(frozen=True)
class ClassifierFreeGuidance(Guidance):
    """v = v_null + w (v_cond - v_null), where w = 1 + (scale - 1) schedule(progress) inside the interval and 1 outside.

    w = 1 is the conditional model and w = 0 the unconditional one; both need a single branch. `null` is the null
    condition or a negative prompt, one for all images or one per image. `rescale` phi in [0, 1] then multiplies each
    token of v by 1 - phi + phi |v_cond| / |v|: the rescaling of Lin et al. (2023), for each token; logits keep theirs.
    """

    null: Condition
    scale: float = 6.5
    interval: tuple[float, float] = (0.0, 1.0)
    schedule: Callable[[float], float] = GUIDANCE_SCHEDULES["constant"]
    rescale: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ValueError(f"The guidance scale must be finite (1 disables guidance); got {self.scale}.")
        require_interval(self.interval)
        if not 0 <= self.rescale <= 1:
            raise ValueError(f"The guidance rescale must be in [0, 1] (0 disables it); got {self.rescale}.")
        require_finite("The null condition", self.null.tokens)

    def weight(self, progress: float) -> float:
        """w at this progress."""
        low, high = self.interval
        factor = self.schedule(progress) if low <= progress <= high else 0.0
        return 1 + (self.scale - 1) * factor

    def of(self, images: slice, total: int) -> "ClassifierFreeGuidance":
        return self if len(self.null) == 1 else replace(self, null=self.null.repeated(total)[images])

    def at(self, progress: float, condition: Condition | None, keep_all: bool = False) -> Branches:
        if condition is None:
            raise ValueError("Guidance needs a condition; pass one, or disable guidance.")
        w = self.weight(progress)
        keep = keep_all and self.scale != 1  # at scale 1 the null branch never has a weight
        keep = keep or (self.rescale > 0 and w == 0)  # the norm is that of the conditional branch
        branches = [(c, v) for c, v in ((condition, w), (self.null, 1 - w)) if keep or v != 0]
        conditions, weights = zip(*branches, strict=True)
        return Branches(conditions, weights, self.rescale)
