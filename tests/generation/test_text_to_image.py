"""Sampling options from prompts to images."""

from typing import Any

import pytest
import torch
from laws import awake

import tmatch as tm
from tmatch.codec import Codec
from tmatch.conditioning import WordEncoder
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig

PROMPTS = ["a b", "b", "a"]


@pytest.mark.parametrize(
    ("options", "negative", "weight"),
    [
        ({"guidance": 3.0}, None, lambda t: 3.0),
        ({"guidance": 3.0}, "b a", lambda t: 3.0),
        ({"guidance": 3.0, "guidance_schedule": "rising"}, None, lambda t: 1 + 2 * t),
        ({"guidance": 3.0, "guidance_schedule": "falling"}, "b", lambda t: 3 - 2 * t),
        ({"guidance": 3.0, "guidance_interval": (0.3, 0.5)}, None, lambda t: 3.0 if t == 1 / 3 else 1.0),
        ({"guidance": 3.0, "guidance_rescale": 0.6}, None, lambda t: 3.0),
        ({"head_steps": 5, "last_head_steps": 1, "head_schedule": "time"}, None, lambda t: 2.0),
        ({"guidance": 1.0, "solver": "heun", "head_steps": 2}, None, lambda t: 1.0),
    ],
)
def test_images_follow_the_options(options: dict[str, Any], negative: str | None, weight) -> None:  # noqa: ANN001
    """As step by step with the conditions of the prompts and of the negative prompt, at the weight of each time."""
    encoder = awake(WordEncoder(["a", "b"], width=8, heads=2))
    model = awake(tm.build("dtm", tm.DiT(12, 16, 1, 2, condition_width=8), 12, tm.HeadConfig(width=16, depth=1)))
    pipeline = TextToImage(model, encoder, Codec(tm.Patchify((2, 2))), (2, 2, 12))
    images = pipeline.generate(PROMPTS, [5, 6, 7], SamplingConfig(steps=3, **options), negative=negative).images
    head_steps = [5, 4, 2] if "last_head_steps" in options else [4, 4, 4]  # round(5 - 4 t)
    x, rng = None, tm.RandomStreams([5, 6, 7])
    with torch.no_grad():
        condition, null = encoder(PROMPTS), encoder(["" if negative is None else negative])
        for (t, t_next), steps in zip(((0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1)), head_steps, strict=True):
            x = rng.normal(2, 2, 12) if x is None else x
            guidance = tm.ClassifierFreeGuidance(null, weight(t), rescale=options.get("guidance_rescale", 0.0))
            params = tm.SamplingParams(tm.Heun(2) if "solver" in options else tm.Euler(steps), guidance)
            x = model.sample((2, 2, 12), rng, condition, [t, t_next], params, start=x)
    torch.testing.assert_close(images, pipeline.codec.decode(x), atol=1e-5, rtol=1e-5)
    assert images.std() > 0.05
