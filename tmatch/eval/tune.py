"""Choosing sampling settings within budgets of network evaluations, by a metric on validation prompts."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import ceil, inf, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tmatch.config import Config
from tmatch.data import CaptionedImages
from tmatch.data.progress import progress_bar
from tmatch.eval import LOWER_IS_BETTER, score
from tmatch.eval.evaluate import evaluate
from tmatch.files import write_text
from tmatch.generation import Evaluations, TextToImage
from tmatch.generation.config import SamplingConfig, require_applicable, unguided
from tmatch.generation.presets import Preset, PresetName
from tmatch.kernel import MaskedTokens
from tmatch.tensors import Precision

CHOICES: dict[str, tuple[Any, ...]] = {
    "sampler": (
        "default", "heun", "midpoint", "ab2", "ab3", "dpm++2m", "unipc", "ddim", "sde", "overshoot:0.2",
        "overshoot:0.5", "overshoot:0.8", "restart", "glass",
    ),
    "grid": (None, "shifted:0.5", "shifted:2", "shifted:3", "exponential", "power:2", "karras"),
    "guidance": (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0),
    "guidance_schedule": ("constant", "rising", "falling"),
    "guidance_interval": ((0.0, 1.0), (0.0, 0.8), (0.2, 1.0)),
    "guidance_rescale": (0.0, 0.5, 1.0),
    "head_steps": (1, 2, 4, 8, 16, 32),
    "last_head_steps": (None, 1, 2, 4),
    "head_schedule": ("tokens", "time"),
    "solver": ("euler", "midpoint", "heun", "ab2", "ab3"),
    "order": ("random", "confidence"),
    "temperature": (0.7, 0.8, 0.9, 1.0),
    "top_p": (0.9, 0.95, None),
}  # fmt: skip
"""What is tried for each option; what does not apply to a model is skipped."""
ROUNDS, FINALISTS = 2, 4
"""Rounds over the options at most for the first preset (the others take one), and settings that are measured again."""
SEARCH, FRESH = 4, 8
"""Blocks of prompts that settings are compared on at most, and fresh blocks that the best ones are measured on."""


class Measurement(Config):
    """The score of settings on one block of prompts, and what an image costs."""

    sampling: SamplingConfig
    block: int
    score: float
    backbone_evaluations: int
    head_evaluations: int
    ms_per_image: float


class _OverBudget(ValueError):
    """Settings need more evaluations of the backbone."""


@dataclass(frozen=True)
class Budget:
    """At most so many backbone evaluations per image, and head evaluations for each of these."""

    backbone: int
    head: int

    def allows(self, cost: Evaluations) -> bool:
        return cost.backbone <= self.backbone and cost.head <= self.head * cost.backbone


class Tuner:
    """Coordinate descent: one option at a time takes the choice of the best score, until none improves.

    The choices of an option race: all are measured on one block of prompts, the better half on two, and the better half
    of those on four. All settings are compared on the same prompts and seeds: block k is those from k * `count` on, and
    prompts repeat with other seeds if there are too few. A budget N means at most N backbone evaluations per image, and
    at most N head evaluations for each of these; a model that cannot do with so few takes the fewest it can. Every
    measurement is a line of the `log`, from which a second run with the same arguments reads it.
    """

    def __init__(
        self, pipeline: TextToImage, prompts: Sequence[Any], reference: CaptionedImages | None, metric: str,
        count: int, log: Path, *, precision: Precision = "float32", progress: bool = False,
    ) -> None:  # fmt: skip
        self.pipeline, self.prompts, self.reference, self.metric = pipeline, prompts, reference, metric
        self.count, self.log, self.precision, self.progress = count, log, precision, progress
        self.sign = -1 if metric in LOWER_IS_BETTER else 1
        kernel = pipeline.model.kernel
        networks = (kernel.backbone, kernel.head)
        self.sizes = [0 if network is None else sum(p.numel() for p in network.parameters()) for network in networks]
        self.known = {(m.sampling, m.block): m for m in _read(log)}
        write_text(log, "".join(f"{m.model_dump_json()}\n" for m in self.known.values()))
        self.adjustable = self._adjustable()
        self._costs = {m.sampling: _cost(m) for m in self.known.values()}

    def _adjustable(self) -> str | None:
        """The option that the number of backbone evaluations follows from; None if it is the model's own."""
        if isinstance(self.pipeline.model.kernel, MaskedTokens):
            return "iterations"
        with suppress(ValueError):  # a model that predicts NextState takes one number of steps
            for steps in (1, 2):
                self.pipeline.model.grid(steps)
            return "steps"
        return None

    def choose(self, own: SamplingConfig, budgets: Mapping[PresetName, int]) -> dict[PresetName, Preset]:
        """The preset of each budget; budgets ascend, and each search starts from the preset of the one before.

        The settings of the best scores are measured again on fresh prompts. Of those that are within one standard error
        of the best, the cheapest is chosen.
        """
        presets: dict[PresetName, Preset] = {}
        visited: dict[SamplingConfig, None] = {}
        for name, backbone in budgets.items():
            start, budget = self.start(own, backbone)
            visited |= dict.fromkeys(self.search(start, budget, name, rounds=1 if presets else ROUNDS))
            allowed = [sampling for sampling in visited if budget.allows(self.cost(sampling))]
            best = self.distinct(sorted(allowed, key=self.rank, reverse=True))[:FINALISTS]
            finalists = [start, *best, *(preset.sampling for preset in presets.values())]
            presets[name] = self.final([s for s in dict.fromkeys(finalists) if budget.allows(self.cost(s))], name)
            own = presets[name].sampling
        return presets

    def start(self, own: SamplingConfig, most: int) -> tuple[SamplingConfig, Budget]:
        """The model's own settings, made to fit `most` evaluations, and the budget: theirs, if they need more."""
        start = self.sized(own, most)
        try:
            cost = self.cost(start)
        except ValueError:  # the sampler of these settings needs more steps
            if own.sampler == "default":
                raise
            return self.start(own.updated(sampler="default"), most)
        if cost.head > most * cost.backbone and own.head_steps > 1:
            return self.start(own.updated(head_steps=own.head_steps // 2), most)
        return start, Budget(max(most, cost.backbone), max(most, ceil(cost.head / cost.backbone)))

    def sized(self, sampling: SamplingConfig, most: int) -> SamplingConfig:
        """The settings with the most steps, or mask iterations, of at most `most` backbone evaluations."""
        if self.adjustable is None:
            return sampling
        name, low, high = self.adjustable, most, most + 1

        def fits(number: int) -> bool:
            with suppress(ValueError):
                return self.cost(sampling.updated(**{name: number}), most).backbone <= most
            return False

        while low > 1 and not fits(low):
            low, high = low // 2, low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return sampling.updated(**{name: low})

    def cost(self, sampling: SamplingConfig, most: float = inf) -> Evaluations:
        """Network evaluations per image, counted on one; raises after `most` evaluations of the backbone."""
        if sampling not in self._costs:
            calls = count(1)

            def check(*_: object) -> None:
                if next(calls) > most:
                    raise _OverBudget

            hook = self.pipeline.model.kernel.backbone.register_forward_hook(check)
            try:
                found = self.pipeline.generate(self.prompts[:1], [0], sampling, precision=self.precision)
            finally:
                hook.remove()
            self._costs[sampling] = found.evaluations
        return self._costs[sampling]

    def rank(self, sampling: SamplingConfig, blocks: range = range(SEARCH)) -> tuple[float, float]:
        """The better score on these blocks is the larger, then the lower cost."""
        found = [self.measure(sampling, block) for block in blocks]
        return self.sign * fmean(m.score for m in found), -self.work(found[0])

    def distinct(self, settings: Sequence[SamplingConfig]) -> list[SamplingConfig]:
        """The first of the settings with each sequence of scores: equal ones make the same images."""
        images = {tuple(self.measure(s, block).score for block in range(SEARCH)): s for s in reversed(settings)}
        return list(reversed(images.values()))

    def work(self, found: Measurement) -> float:
        """Multiplications per token, up to a factor: each evaluation uses every weight once."""
        backbone, head = self.sizes
        return found.backbone_evaluations * backbone + found.head_evaluations * head

    def search(self, start: SamplingConfig, budget: Budget, name: str, rounds: int = ROUNDS) -> list[SamplingConfig]:
        """The settings that a coordinate descent within a budget measured on all blocks of the search."""
        best, visited = start, [start]
        for _ in range(rounds):
            before = best
            for option, choices in CHOICES.items():
                found = [best]
                for choice in progress_bar(choices, f"{name}: {option}", enabled=self.progress):
                    with suppress(ValueError):  # it does not apply to this model, or diverges
                        sampling = self.changed(best, option, choice, budget)
                        self.measure(sampling)
                        found.append(sampling)
                visited += self.race(list(dict.fromkeys(found)))
                best = max(visited, key=self.rank)
            if best == before:
                break
        return list(dict.fromkeys(visited))

    def race(self, settings: list[SamplingConfig]) -> list[SamplingConfig]:
        """Those that remain when the worse half gives way each time that the number of blocks doubles."""
        blocks = 1
        while blocks < SEARCH:
            order = sorted(settings, key=partial(self.rank, blocks=range(blocks)), reverse=True)
            blocks *= 2
            settings = self.measurable(order[: max(2, ceil(len(order) / 2))], range(blocks))
        return settings

    def measurable(self, settings: Iterable[SamplingConfig], blocks: range) -> list[SamplingConfig]:
        """The settings that do not diverge on these blocks."""
        found = []
        for sampling in settings:
            with suppress(ValueError):
                for block in blocks:
                    self.measure(sampling, block)
                found.append(sampling)
        return found

    def changed(self, sampling: SamplingConfig, option: str, choice: Any, budget: Budget) -> SamplingConfig:  # noqa: ANN401
        """The settings with another option, resized; raises if it has no effect on this model or is too expensive."""
        sampling = sampling.updated(**{option: choice})
        require_applicable(self.pipeline.model.kernel, sampling, [option])
        if self.pipeline.encoder.width is None:
            unguided(sampling, [option])
        sampling = self.sized(sampling, budget.backbone)
        if not budget.allows(self.cost(sampling, budget.backbone)):
            raise _OverBudget
        return sampling

    def final(self, finalists: Sequence[SamplingConfig], name: str) -> Preset:
        """The cheapest of the settings that are within one standard error of the best on the fresh blocks."""
        blocks = range(SEARCH, SEARCH + FRESH)
        shown = progress_bar(finalists, f"{name}: the best again", enabled=self.progress)
        found = [[self.measure(s, block) for block in blocks] for s in self.measurable(shown, blocks)]
        if not found:
            raise ValueError("All settings diverge: use another model.")

        def rank(blocks: list[Measurement]) -> tuple[float, float]:
            return self.sign * fmean(m.score for m in blocks), -self.work(blocks[0])

        best = max(found, key=rank)
        ties = [blocks for blocks in found if _within_noise(best, blocks)]
        chosen = max(ties, key=lambda blocks: tuple(reversed(rank(blocks))))
        return Preset(
            sampling=chosen[0].sampling, score=round(fmean(m.score for m in chosen), 6),
            backbone_evaluations=chosen[0].backbone_evaluations, head_evaluations=chosen[0].head_evaluations,
            ms_per_image=round(fmean(m.ms_per_image for m in chosen), 3),
        )  # fmt: skip

    def measure(self, sampling: SamplingConfig, block: int = 0) -> Measurement:
        """The score on a block of prompts, read from the log if it is there."""
        if (sampling, block) not in self.known:
            numbers = range(block * self.count, (block + 1) * self.count)
            result = evaluate(
                self.pipeline, [self.prompts[k % len(self.prompts)] for k in numbers], self.reference, (self.metric,),
                sampling, first_seed=numbers.start, precision=self.precision,
            )  # fmt: skip
            found = Measurement(
                sampling=sampling, block=block, score=score(result),
                backbone_evaluations=result["backbone_evaluations"], head_evaluations=result["head_evaluations"],
                ms_per_image=round(1000 * result["seconds"] / self.count, 3),
            )  # fmt: skip
            with self.log.open("a", encoding="utf-8") as log:
                log.write(found.model_dump_json() + "\n")
            self.known[sampling, block] = found
        return self.known[sampling, block]


def _cost(found: Measurement) -> Evaluations:
    return Evaluations(found.backbone_evaluations, found.head_evaluations)


def _within_noise(best: Sequence[Measurement], other: Sequence[Measurement]) -> bool:
    """Whether the mean of the differences in each block is at most its standard error."""
    gaps = [a.score - b.score for a, b in zip(best, other, strict=True)]
    return abs(fmean(gaps)) <= stdev(gaps) / sqrt(len(gaps))


def _read(log: Path) -> list[Measurement]:
    """The measurements of a log; a line that a killed process did not complete is dropped."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else []:
        with suppress(ValueError):
            found.append(Measurement.model_validate_json(line))
    return found
