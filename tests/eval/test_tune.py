"""The search for sampling settings: on planted qualities whose best settings are known, and on models of every kind."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import shape_of, small_model

import tmatch as tm
from tmatch.codec import Codec
from tmatch.conditioning import WordEncoder
from tmatch.eval import METRICS, tune
from tmatch.eval.evaluate import evaluate
from tmatch.eval.tune import CHOICES, FRESH, SEARCH, Budget, Tuner
from tmatch.generation import Evaluations, GeneratedImages, TextToImage
from tmatch.generation.config import SamplingConfig
from tmatch.generation.presets import Preset, PresetName

Quality = Callable[[SamplingConfig, int], float]
"""The brightness of an image, which is its score, from the settings and the seed."""
BUDGETS: dict[PresetName, int] = {"fast": 4, "balanced": 16, "best": 64}
COUNT = 10


class Planted(TextToImage):
    """Images of a given quality at a given cost."""

    def __init__(self, variant: str, quality: Quality, evaluations: Callable[[SamplingConfig], int]) -> None:
        encoder = WordEncoder(["a", "b"], width=8, heads=2)
        super().__init__(small_model(variant), encoder, Codec(tm.Patchify((1, 1))), (2, 3, 4))
        self.quality, self.evaluations = quality, evaluations
        self.seen: list[tuple[SamplingConfig, int]] = []

    def generate(
        self,
        inputs: Sequence[Any],
        seeds: Sequence[int],
        sampling: SamplingConfig = SamplingConfig(),
        **options: object,
    ) -> GeneratedImages:
        if len(inputs) == COUNT:
            self.seen.append((sampling, seeds[0] // COUNT))
        scores = torch.tensor([self.quality(sampling, seed) for seed in seeds])
        backbone = self.evaluations(sampling)
        images = scores[:, None, None, None].expand(-1, 3, 1, 1)
        return GeneratedImages(images, Evaluations(backbone, backbone * sampling.head_steps), 0.1)


def steps(sampling: SamplingConfig) -> int:
    assert sampling.steps is not None
    return sampling.steps


@pytest.fixture(autouse=True)
def _brightness(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sign in (("bright", 1), ("dark", -1)):
        monkeypatch.setitem(METRICS, name, lambda images, *_, sign=sign: {"score": sign * images.mean().item()})
    monkeypatch.setattr(tune, "LOWER_IS_BETTER", frozenset({"dark"}))


def tuner(pipeline: TextToImage, log: Path, metric: str = "bright", count: int = COUNT) -> Tuner:
    return Tuner(pipeline, ["a", "b", "a b"], None, metric, count, log)


def quality(sampling: SamplingConfig, seed: int) -> float:
    """Best with guidance 3 and the sampler ddim; more steps, and head steps up to 8, are better."""
    better = {"ddim": 0.5}.get(sampling.sampler, 0.0) - abs(sampling.guidance - 3.0)
    return better - 1 / steps(sampling) - 1 / min(sampling.head_steps, 8) + seed % 7


@pytest.mark.parametrize("metric", ["bright", "dark"])
def test_the_planted_best_settings_are_found_within_each_budget(metric: str, tmp_path: Path) -> None:
    found = tuner(Planted("ddpm", quality, steps), tmp_path / "log", metric).choose(SamplingConfig(steps=32), BUDGETS)
    assert [*found] == [*BUDGETS]
    for name, preset in found.items():
        assert (preset.sampling.sampler, preset.sampling.guidance) == ("ddim", 3.0)
        assert preset.sampling.steps == preset.backbone_evaluations == BUDGETS[name]
    with_head = tuner(Planted("dtm", quality, steps), tmp_path / "other", metric).choose(SamplingConfig(), BUDGETS)
    heads = [preset.sampling.head_steps for preset in with_head.values()]
    assert heads == [4, 8, 8], "at most 4 in `fast`; beyond 8 they only cost time"


@pytest.mark.parametrize(
    "cost", [lambda n: n, lambda n: 2 * n, lambda n: 2 * n - 1, lambda n: n + 3, lambda n: round(2.4 * n)]
)
@pytest.mark.parametrize("most", [4, 13, 64])
def test_a_sampler_takes_as_many_steps_as_the_budget_allows(
    cost: Callable[[int], int], most: int, tmp_path: Path
) -> None:
    pipeline = Planted("fm", quality, lambda sampling: cost(steps(sampling)))
    sized = tuner(pipeline, tmp_path / "log").sized(SamplingConfig(), most)
    assert sized.steps == max([n for n in range(1, most + 1) if cost(n) <= most])


def test_a_setting_that_is_best_by_chance_is_not_chosen(tmp_path: Path) -> None:
    """Guidance 5 shines on the prompts of the search only."""

    def lucky(sampling: SamplingConfig, seed: int) -> float:
        chance = float(seed < SEARCH * COUNT) if sampling.guidance == 5.0 else 0.0
        return chance - 0.1 * abs(sampling.guidance - 1.5)

    pipeline = Planted("fm", lucky, steps)
    found = tuner(pipeline, tmp_path / "log").choose(SamplingConfig(), {"fast": 4})
    assert max(pipeline.seen, key=lambda seen: lucky(seen[0], 0))[0].guidance == 5.0, "it led the search"
    assert found["fast"].sampling.guidance != 5.0


@pytest.mark.parametrize(("advantage", "chosen"), [(0.0, 1), (0.3, 1), (0.6, 32)])
def test_of_settings_within_a_standard_error_of_the_best_the_cheapest_is_chosen(
    advantage: float, chosen: int, tmp_path: Path
) -> None:
    """32 head steps are better by `advantage` on average, and by 1 more or less in every other block."""

    def better(sampling: SamplingConfig, seed: int) -> float:
        swing = 1 if seed // COUNT % 2 else -1  # of eight blocks: standard deviation sqrt(8 / 7), standard error 0.38
        return (advantage + swing) * (sampling.head_steps == 32)

    finalists = [SamplingConfig(head_steps=k) for k in (4, 1, 32)]
    found = tuner(Planted("dtm", better, steps), tmp_path / "log").final(finalists, "best")
    assert found.sampling.head_steps == chosen


def test_the_finalists_are_measured_on_fresh_prompts_and_seeds(tmp_path: Path) -> None:
    pipeline = Planted("fm", quality, steps)
    found = tuner(pipeline, tmp_path / "log").choose(SamplingConfig(), {"fast": 4})["fast"]
    assert [block for sampling, block in pipeline.seen if sampling == found.sampling] == [*range(SEARCH + FRESH)]
    assert {block for _, block in pipeline.seen} == {*range(SEARCH + FRESH)}
    again = [quality(found.sampling, seed) for seed in range(SEARCH * COUNT, (SEARCH + FRESH) * COUNT)]
    assert found.score == pytest.approx(sum(again) / len(again), abs=1e-5)


@pytest.mark.parametrize("after", [1, 5, 20, 60])
def test_an_interrupted_search_resumes_without_measuring_twice(after: int, tmp_path: Path) -> None:
    whole, own = Planted("dtm", quality, steps), SamplingConfig()
    expected = tuner(whole, tmp_path / "whole").choose(own, BUDGETS)

    def interrupted(calls: Iterator[int]) -> Quality:
        def limited(sampling: SamplingConfig, seed: int) -> float:
            if seed % COUNT == COUNT - 1 and next(calls, None) is None:
                raise KeyboardInterrupt
            return quality(sampling, seed)

        return limited

    part, rest = Planted("dtm", interrupted(iter(range(after))), steps), Planted("dtm", quality, steps)
    with pytest.raises(KeyboardInterrupt):
        tuner(part, tmp_path / "log").choose(own, BUDGETS)
    with (tmp_path / "log").open("a") as log:
        log.write('{"sampling": {"steps": 4')  # of a killed process
    assert tuner(rest, tmp_path / "log").choose(own, BUDGETS) == expected
    assert [*part.seen[:after], *rest.seen] == whole.seen, "the same measurements in the same order"
    assert (tmp_path / "log").read_text() == (tmp_path / "whole").read_text()
    for line in (tmp_path / "log").read_text().splitlines():
        assert json.loads(line)["ms_per_image"] == 10.0


def networks(variant: str, width: int | None = 8) -> TextToImage:
    """A pipeline of a small model."""
    encoder = WordEncoder(["a", "b"], width=8, heads=2)
    codec = Codec(tm.Patchify((1, 1)))
    codec.decode = lambda states: states[..., :1].movedim(-1, 1).expand(-1, 3, -1, -1).float()  # type: ignore[method-assign]
    rows, columns, channels = shape_of(variant)
    return TextToImage(small_model(variant, width), encoder, codec, (rows, columns, channels))


def assert_cost(pipeline: TextToImage, preset: Preset, budget: Budget) -> None:
    measured = evaluate(pipeline, ["a"], metrics=["bright"], sampling=preset.sampling)
    cost = Evaluations(preset.backbone_evaluations, preset.head_evaluations)
    assert cost == Evaluations(measured["backbone_evaluations"], measured["head_evaluations"])
    assert budget.allows(cost)


@pytest.mark.parametrize(
    "variant", ["fm", "dtm", "dtm-32", "ddpm", "mar", "martm-2", "artm-2", "fhtm-2", "ar-discrete"]
)
def test_presets_of_every_kind_of_model_keep_their_budget(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"sampler": ("ddim", "restart"), "head_steps": (1, 32), "solver": ("heun",), "temperature": (0.5,)}
    monkeypatch.setattr(tune, "CHOICES", options)
    pipeline, fixed = networks(variant), {"artm-2": 12, "fhtm-2": 12, "ar-discrete": 6}.get(variant, 0)
    own = SamplingConfig(steps=None, head_steps=16)
    search = tuner(pipeline, tmp_path / "log", count=2)
    found = search.choose(own, {"fast": 2, "best": 5})
    for name, most in (("fast", 2), ("best", 5)):
        assert_cost(pipeline, found[name], Budget(max(most, fixed), most))
        start, budget = search.start(own, most)
        assert budget == Budget(max(most, fixed), most)
        assert search.cost(start).backbone == (fixed or {"martm-2": most // 2 * 2}.get(variant, most))


def test_a_sampler_that_needs_more_steps_than_the_budget_gives_way(tmp_path: Path) -> None:
    start, budget = tuner(networks("fm"), tmp_path / "log").start(SamplingConfig(sampler="restart"), 3)
    assert (start.sampler, start.steps, budget) == ("default", 3, Budget(3, 3))


def test_the_choices_are_settings() -> None:
    for option, choices in CHOICES.items():
        for choice in choices:
            assert getattr(SamplingConfig().updated(**{option: choice}), option) == choice


def test_of_flow_matching_every_sampler_is_tried_within_the_budget(tmp_path: Path) -> None:
    """But restart, whose intervals need more steps."""
    search = tuner(networks("fm"), tmp_path / "log", count=1)
    search.search(*search.start(SamplingConfig(), 8), "balanced")
    visited = search.known.values()
    assert {m.sampling.sampler for m in visited} == {*CHOICES["sampler"]} - {"restart"}
    assert {m.sampling.grid for m in visited} == {*CHOICES["grid"]}
    assert all(4 <= m.backbone_evaluations <= 8 for m in visited)


def test_one_block_of_prompts_does_not_decide_a_race(tmp_path: Path) -> None:
    """Of eight choices, number k has the score k; the noise of block 0 lifts number 0 to the top."""

    def lifted(sampling: SamplingConfig, seed: int) -> float:
        return sampling.guidance + 10 * (sampling.guidance == 1 and seed < COUNT)

    pipeline = Planted("fm", lifted, steps)
    racing = tuner(pipeline, tmp_path / "log").race([SamplingConfig(guidance=float(k)) for k in range(1, 9)])
    assert {sampling.guidance for sampling in racing} == {7.0, 8.0}
    blocks = [len([1 for seen in pipeline.seen if seen[0].guidance == k]) for k in range(1, 9)]
    assert blocks == [2, 1, 1, 1, 1, 2, 4, 4]
