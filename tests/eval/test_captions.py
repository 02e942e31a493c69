import pytest
import torch

import tmatch as tm
from tmatch.codec import Codec
from tmatch.conditioning import WordEncoder
from tmatch.data import ShapeImages
from tmatch.eval.captions import captions_satisfied, interval


def test_the_interval_holds_the_share_nineteen_times_in_twenty() -> None:
    trials, share = 200, 0.8
    samples_per_token = (tm.RandomStreams(range(4000)).uniform(trials) < share).sum(1)
    covered = [interval(int(k), trials)[0] <= share <= interval(int(k), trials)[1] for k in samples_per_token]
    assert sum(covered) / len(covered) == pytest.approx(0.95, abs=0.02)
    assert interval(10, 10)[1] == pytest.approx(1.0)


class Painter(torch.nn.Module):
    """In the place of a pipeline: draws the right image for every caption but the first few."""

    def __init__(self, prompts: ShapeImages, wrong: int) -> None:
        super().__init__()
        self.prompts, self.wrong = prompts, wrong

    def generate(self, captions: list[str], seeds: range, **how: object) -> object:
        images = self.prompts.load(seeds)
        images[: self.wrong] = 0.0
        return tm.sample.GeneratedImages(images, tm.sample.Evaluations(3, 4), 0.5)


def test_what_is_drawn_right_counts() -> None:
    prompts = ShapeImages(5, 40)
    measured = captions_satisfied(Painter(prompts, 10), prompts)  # type: ignore[arg-type]
    assert measured.share == pytest.approx(0.75)
    record = measured.record()
    assert record["prompts"] == 40
    assert record["backbone_evaluations"] == 3
    assert sum(share * prompts.skill.count(skill) for skill, share in measured.skills.items()) == pytest.approx(30)


def test_prompts_and_seeds_are_checked_and_a_image_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    encoder = WordEncoder(["a", "b"], width=8, heads=2)
    model = tm.build("dtm-mean", tm.DiT(12, 16, 1, 2, condition_width=8), 12, tm.HeadConfig(16, 1))
    pipeline = tm.sample.TextToImage(model, encoder, Codec(tm.Patchify((2, 2))), (2, 2, 12))
    together = pipeline.generate(["a", "b", "a b"], range(3), steps=2, guidance=2.0)
    alone = pipeline.generate(["a", "b", "a b"], range(3), steps=2, guidance=2.0, batch_size=1)
    assert together.images.shape == (3, 3, 4, 4)
    torch.testing.assert_close(together.images, alone.images, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="A prompt is empty"):
        pipeline.generate(["a", "  "], range(2))
    with pytest.raises(ValueError, match="3 seeds for 1 prompts"):
        pipeline.generate(["a"], range(3))
    with pytest.raises(ValueError, match="guidance scale is a finite number"):
        pipeline.generate(["a"], [0], guidance=float("nan"))
