import json

import pytest
import torch

import tmatch as tm
from tmatch.codec import Codec
from tmatch.codec.saved import shipped_autoencoder
from tmatch.conditioning import WordEncoder
from tmatch.data import ShapeImages
from tmatch.data.shapes import SKILLS
from tmatch.eval import METRICS, score
from tmatch.eval.captions import captions, wilson_interval
from tmatch.eval.evaluate import evaluate
from tmatch.eval.shapes import skill_of
from tmatch.generation import Evaluations, GeneratedImages, TextToImage
from tmatch.generation.config import SamplingConfig

TWO_STEPS = SamplingConfig(steps=2)


def test_the_interval_covers_the_true_share_95_percent_of_the_time() -> None:
    trials, share = 200, 0.8
    successes = (tm.RandomStreams(range(4000)).uniform(trials) < share).sum(1)
    intervals = [wilson_interval(int(k), trials) for k in successes]
    assert sum(low <= share <= high for low, high in intervals) / 4000 == pytest.approx(0.95, abs=0.02)
    assert wilson_interval(10, 10)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (3, 7), (800, 1000)])
def test_the_interval_ends_where_the_measured_share_is_z_standard_errors_away(successes: int, trials: int) -> None:
    """Wilson's (1927) definition: the standard error is that of the bound, so that certainty needs many trials."""
    for bound in wilson_interval(successes, trials, z=2.0):
        error = (bound * (1 - bound) / trials) ** 0.5
        assert abs(bound - successes / trials) == pytest.approx(2 * error, abs=1e-9)
    low, high = wilson_interval(successes, trials)
    assert low < high


class Renderer(torch.nn.Module):
    """Stands for a pipeline: renders the right image for every caption but the first few."""

    def __init__(self, prompts: ShapeImages, wrong: int) -> None:
        super().__init__()
        self.prompts, self.wrong = prompts, wrong
        self.codec = Codec(tm.Patchify(), shipped_autoencoder())

    def generate(
        self, captions: list[str], seeds: range, sampling: SamplingConfig, **options: object
    ) -> GeneratedImages:
        assert (captions, seeds, sampling.steps) == (self.prompts.captions, range(40), 2)
        images = self.prompts.load(seeds)
        images[: self.wrong] = 0.0
        return GeneratedImages(images, Evaluations(3, 4), 0.5)


def test_satisfied_captions_are_counted_by_skill() -> None:
    prompts = ShapeImages(5, 40)
    result = evaluate(Renderer(prompts, 10), prompts.captions, prompts, ("captions",), TWO_STEPS)  # type: ignore[arg-type]
    assert json.loads(json.dumps(result)) == result
    assert result["captions_satisfied"] == pytest.approx(0.75)
    assert (result["prompts"], result["backbone_evaluations"], result["head_evaluations"]) == (40, 3, 4)
    scenes = prompts.shapes.scenes(prompts.index)
    skills = [skill_of(caption) for caption in prompts.captions]
    assert skills == [SKILLS[k] for k in scenes.skill]
    counted = sum(share * skills.count(skill) for skill, share in result["skills"].items())
    assert counted == pytest.approx(30, abs=0.01)


def test_a_metric_that_is_unknown_or_does_not_apply_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = ShapeImages(5, 40)
    with pytest.raises(ValueError, match=r"no metric 'caption' \(did you mean 'captions'\?\)"):
        evaluate(Renderer(prompts, 0), prompts.captions, metrics=["caption"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must have shape \(n, 3, 32, 32\)"):
        captions(torch.rand(1, 3, 64, 64), ["a circle"])
    with pytest.raises(ValueError, match="'a cat' is not a caption of shapes"):
        captions(torch.rand(1, 3, 32, 32), ["a cat"])
    for key in ("prompts", "seconds", "captions_satisfied"):
        monkeypatch.setitem(METRICS, "count", lambda images, *_, key=key: {key: len(images)})
        with pytest.raises(ValueError, match=f"'{key}' of a metric is already in the result"):
            evaluate(Renderer(prompts, 0), prompts.captions, None, ["captions", "count"], TWO_STEPS)  # type: ignore[arg-type]


def test_the_scores_come_first() -> None:
    """So that `score` reads that of the first metric; the reference need not be the prompts' own images."""
    prompts, renderer = ShapeImages(5, 40), Renderer(ShapeImages(5, 40), 10)
    for metrics in (["captions", "energy"], ["energy", "frechet", "captions"]):
        result = evaluate(renderer, prompts.captions, ShapeImages(6, 90), metrics, TWO_STEPS)  # type: ignore[arg-type]
        key = {"captions": "captions_satisfied", "energy": "energy_distance"}[metrics[0]]
        assert score(result) == result[key] != 0
    with pytest.raises(ValueError, match="pass a reference"):
        evaluate(renderer, prompts.captions, None, ["frechet"], TWO_STEPS)  # type: ignore[arg-type]


def test_an_image_does_not_depend_on_its_batch() -> None:
    encoder = WordEncoder(["a", "b"], width=8, heads=2)
    model = tm.build("dtm-mean", tm.DiT(12, 16, 1, 2, condition_width=8), 12, tm.HeadConfig(width=16, depth=1))
    pipeline = TextToImage(model, encoder, Codec(tm.Patchify((2, 2))), (2, 2, 12))
    together = pipeline.generate(["a", "b", "a b"], range(3), TWO_STEPS)
    alone = pipeline.generate(["a", "b", "a b"], range(3), TWO_STEPS, batch_size=1)
    assert together.images.shape == (3, 3, 4, 4)
    torch.testing.assert_close(together.images, alone.images, atol=1e-5, rtol=0)
    for prompts, seeds, named in ((["a", "  "], 2, "prompt"), (["a"], 3, "3 seeds")):
        with pytest.raises(ValueError, match=named):
            pipeline.generate(prompts, range(seeds))
