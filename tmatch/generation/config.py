"""`SamplingConfig`: sampling options as plain strings and numbers."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator

from tmatch.condition import Condition
from tmatch.config import Config, Count, SamplingSteps, lookup
from tmatch.distribution import Categorical
from tmatch.guidance import GUIDANCE_SCHEDULES, ClassifierFreeGuidance, NoGuidance, require_interval
from tmatch.kernel import Kernel, MaskedTokens
from tmatch.kernel.base import SequentialKernel
from tmatch.sampler import SAMPLERS, build_sampler
from tmatch.sampling import CodeSampling, HeadProgress, HeadSchedule, SamplingParams, Unmasking, UnmaskOrder
from tmatch.solver import SOLVERS
from tmatch.times import GRIDS, Steps, Times, build_grid

PARTS: dict[str, tuple[str, Callable[[Kernel], bool]]] = {
    "head": ("no head", lambda kernel: kernel.head is not None),
    "masks": ("no masked tokens", lambda kernel: isinstance(kernel, MaskedTokens)),
    "codes": ("no codes", lambda kernel: isinstance(kernel.distribution, Categorical)),
    "continuous": ("its tokens are codes", lambda kernel: not isinstance(kernel.distribution, Categorical)),
}
"""The parts of a kernel that options act on: what a model lacks without one, and whether a kernel has it."""


def _option(default: Any, description: str, needs: str | None = None, **bounds: Any) -> Any:  # noqa: ANN401
    """A field; `needs` is the part of the kernel without which it has no effect."""
    return Field(default=default, description=description, json_schema_extra={"needs": needs}, **bounds)


_CHECKS: dict[str, Callable[[str], object]] = {
    "grid": lambda name: build_grid(name, 8),
    "sampler": build_sampler,
    "solver": partial(lookup, "solver", SOLVERS),
    "guidance_schedule": partial(lookup, "guidance schedule", GUIDANCE_SCHEDULES),
}
"""What rejects an unknown name."""


class SamplingConfig(Config):
    """How to sample from a model; each option acts on the variants that have the part it needs."""

    steps: SamplingSteps | None = _option(16, "number of transitions; None uses the variant's own")
    grid: str | None = _option(
        None, f"times of the transitions: {', '.join(GRIDS)}, with numbers as in shifted:3; None uses the variant's own"
    )
    sampler: str = _option("default", f"sampler: {', '.join(SAMPLERS)}; numbers follow a colon, as in overshoot:0.5")
    solver: str = _option("euler", f"ODE solver of the head, or of 'glass': {', '.join(SOLVERS)}", "head")
    head_steps: SamplingSteps = _option(4, "solver steps of the head, or of 'glass', per transition", "head")
    last_head_steps: SamplingSteps | None = _option(
        None, "solver steps of the head at the end of a line that starts at head_steps; None: constant", "head"
    )
    head_schedule: HeadProgress = _option(
        "tokens", "what the number of head steps falls over: the tokens of a state, or time", "head"
    )
    guidance: float = _option(2.0, "classifier-free guidance scale; 1 disables guidance")
    guidance_schedule: str = _option("constant", f"guidance schedule over time: {', '.join(GUIDANCE_SCHEDULES)}")
    guidance_interval: tuple[float, float] = _option((0.0, 1.0), "times between which guidance applies")
    guidance_rescale: float = _option(
        0.0, "from 0 to 1: scale guided tokens towards the norm without guidance", "continuous", ge=0, le=1
    )
    iterations: Count | None = _option(None, "unmasking iterations; None unmasks one token at a time", "masks")
    order: UnmaskOrder = _option("random", "order in which tokens are unmasked", "masks")
    confidence_temperature: float = _option(1.0, "noise on the confidence, for order 'confidence'", "masks", ge=0)
    temperature: float = _option(1.0, "temperature of the codes; 0 takes the most likely code", "codes", ge=0)
    top_k: Count | None = _option(None, "sample among the k most likely codes", "codes")
    top_p: float | None = _option(
        None, "sample among the most likely codes of this total probability", "codes", gt=0, le=1
    )

    @field_validator("grid", "sampler", "solver", "guidance_schedule")
    @classmethod
    def _known(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None:
            _CHECKS[str(info.field_name)](name)
        return name

    @field_validator("guidance_interval")
    @classmethod
    def _ordered(cls, interval: tuple[float, float]) -> tuple[float, float]:
        require_interval(interval)
        return interval

    def times(self, own: Times, scale: float = 1.0) -> Steps | None:
        """What `Model.sample` takes as steps, for a model with its `own` times; `scale` as in `build_grid`."""
        steps = self.steps or len(own.grid(None)) - 1
        return self.steps if self.grid is None else own.snapped(build_grid(self.grid, steps, scale))

    def build(self, null: Condition | None = None) -> SamplingParams:
        """The runtime objects; guidance needs a `null` condition, which unconditional models do not have."""
        last = self.last_head_steps
        return SamplingParams(
            SOLVERS[self.solver](self.head_steps),
            NoGuidance() if null is None else self._guidance(null),
            unmasking=Unmasking(self.iterations, self.order, self.confidence_temperature),
            codes=CodeSampling(self.temperature, self.top_k, self.top_p),
            head_schedule=None if last is None else HeadSchedule(last, self.head_schedule),
        )

    def _guidance(self, null: Condition) -> ClassifierFreeGuidance:
        schedule = GUIDANCE_SCHEDULES[self.guidance_schedule]
        return ClassifierFreeGuidance(null, self.guidance, self.guidance_interval, schedule, self.guidance_rescale)

    def updated(self, **options: Any) -> Self:  # noqa: ANN401
        """A validated copy with other `options`."""
        return type(self).model_validate({**self.model_dump(), **options})


def require_applicable(kernel: Kernel, config: SamplingConfig, options: Collection[str], prefix: str = "") -> None:
    """Reject options that have no effect on a kernel because it lacks the part they act on.

    `prefix` is what the name of an option starts with: '--' on the command line, nothing in Python.
    """
    inner_solver = build_sampler(config.sampler).has_inner_solver
    for name in options:
        extra = SamplingConfig.model_fields[name].json_schema_extra
        needs = str(extra["needs"]) if isinstance(extra, dict) else ""
        lack, present = PARTS.get(needs, ("", lambda _: True))
        if not (present(kernel) or (needs == "head" and inner_solver)):
            raise ValueError(f"{_shown(name, prefix)} has no effect on this model ({lack}); leave it out.")
    scheduled = config.last_head_steps is not None and not {"last_head_steps", "head_schedule"}.isdisjoint(options)
    if scheduled and config.head_schedule == "tokens" and not isinstance(kernel, SequentialKernel):
        raise ValueError(
            f"{_shown('last_head_steps', prefix)} has no effect on this model, which samples all tokens at once: set "
            f"{_shown('head_schedule', prefix)} to time, or leave it out."
        )


def unguided(config: SamplingConfig, options: Collection[str], prefix: str = "") -> SamplingConfig:
    """The settings without guidance, for an unconditional generation; an option of guidance is an error."""
    for name in options:
        if name.startswith("guidance"):
            raise ValueError(f"{_shown(name, prefix)} has no effect on an unconditional generation; leave it out.")
    return config.updated(guidance=1.0)


def _shown(name: str, prefix: str) -> str:
    return f"{prefix}{name.replace('_', '-')}" if prefix else name
