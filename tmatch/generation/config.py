"""How to sample, as strings and numbers: one object for the command line, recipes, previews, `Pipeline` and `plan`."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Self

from pydantic import Field, field_validator

from tmatch.config import Config
from tmatch.distribution import Categorical
from tmatch.guidance import GUIDANCE_SCHEDULES
from tmatch.kernel import Kernel, MaskedTokens
from tmatch.sampler import SAMPLERS, build_sampler
from tmatch.sampling import CodeSampling, Order, SamplingParams, Unmasking
from tmatch.solver import SOLVERS


def _option(default: Any, description: str, needs: str | None = None, **bounds: Any) -> Any:  # noqa: ANN401
    return Field(default=default, description=description, json_schema_extra={"needs": needs}, **bounds)


class SamplingConfig(Config):
    """Sampling options. Each names the part of a model it `needs`, if any."""

    steps: int | None = _option(16, "transitions (None: the variant's own)", gt=0)
    sampler: str = _option("default", f"how Algorithm 2 is run: {', '.join(SAMPLERS)}, with numbers as in ddim:0.5")
    guidance: float = _option(2.0, "classifier-free guidance scale; 1 is off")
    schedule: str = _option("constant", f"schedule of the guidance over time: {', '.join(GUIDANCE_SCHEDULES)}")
    head_steps: int = _option(4, "solver steps of the head per transition", "head", gt=0)
    solver: str = _option("euler", f"ODE solver of the head: {', '.join(SOLVERS)}", "head")
    iterations: int | None = _option(None, "unmasking iterations (None: one token each)", "masks", gt=0)
    order: Order = _option("random", "order in which tokens are unmasked", "masks")
    confidence_temperature: float = _option(1.0, "temperature of the noise on the confidence", "masks", ge=0)
    temperature: float = _option(1.0, "temperature of codes; 0 takes the most likely", "codes", ge=0)
    top_k: int | None = _option(None, "sample from the k most likely codes", "codes", gt=0)
    top_p: float | None = _option(
        None, "sample from the most likely codes of this total probability", "codes", gt=0, le=1
    )

    @field_validator("sampler")
    @classmethod
    def _sampler_exists(cls, spec: str) -> str:
        build_sampler(spec)
        return spec

    @field_validator("schedule")
    @classmethod
    def _schedule_exists(cls, name: str) -> str:
        return known_name("guidance schedule", name, GUIDANCE_SCHEDULES)

    @field_validator("solver")
    @classmethod
    def _solver_exists(cls, name: str) -> str:
        return known_name("solver", name, SOLVERS)

    def build(self) -> SamplingParams:
        """The objects that a kernel samples with; guidance is added where the null condition is known."""
        return SamplingParams(
            solver=SOLVERS[self.solver](self.head_steps),
            unmasking=Unmasking(self.iterations, self.order, self.confidence_temperature),
            codes=CodeSampling(self.temperature, self.top_k, self.top_p),
        )

    def updated(self, **options: Any) -> Self:  # noqa: ANN401
        """The same with other `options`, validated."""
        return type(self).model_validate({**self.model_dump(), **options})


def known_name(what: str, name: str, names: Iterable[str]) -> str:
    """The name, if it is one of `names`."""
    known = list(names)
    if name in known:
        return name
    close = get_close_matches(name, known, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    raise ValueError(f"There is no {what} '{name}'{hint}; choose from {', '.join(known)}.")


def require_applicable(options: Iterable[str], kernel: Kernel) -> None:
    """Reject sampling options that have no effect on a kernel."""
    has = {
        "head": kernel.head is not None,
        "masks": isinstance(kernel, MaskedTokens),
        "codes": isinstance(kernel.distribution, Categorical),
    }
    for option in options:
        extra = SamplingConfig.model_fields[option].json_schema_extra
        needs = extra.get("needs") if isinstance(extra, dict) else None
        if isinstance(needs, str) and not has[needs]:
            flag = option.replace("_", "-")
            raise ValueError(f"--{flag} has no effect on this model, which has no {needs}: leave it out.")
