import pytest
import torch

from tmatch.data.shapes import SKILLS, Shapes
from tmatch.eval.shapes import check, detect

SCENES = Shapes(7).scenes(range(900))
IMAGES = SCENES.render()


def test_renders_satisfy_their_captions() -> None:
    assert check(IMAGES, SCENES.captions).float().mean() >= 0.995


@pytest.mark.parametrize("skill", range(len(SKILLS)), ids=SKILLS)
def test_renders_do_not_satisfy_another_caption_of_the_same_skill(skill: int) -> None:
    chosen = (SCENES.skill == skill).nonzero()[:, 0].tolist()
    others = [next(SCENES.captions[j] for j in chosen[k:] + chosen if SCENES.captions[j] != SCENES.captions[i])
              for k, i in enumerate(chosen)]  # fmt: skip
    assert check(IMAGES[chosen], others).float().mean() <= 0.02


def test_every_object_is_detected() -> None:
    for k, objects in enumerate(detect(IMAGES[:100])):
        assert len(objects) == (SCENES.shape[k] >= 0).sum()


@pytest.mark.parametrize(
    ("image", "verdict"),
    [
        (lambda x: x, True),
        (lambda x: (x + 0.05 * torch.sin(torch.arange(32.0) * 2)).clamp(0, 1), True),  # a faint ripple
        (lambda x: x.flip(-1).flip(-2), False),  # upside down: not a triangle
        (lambda x: x.roll(1, 0), False),  # red is now green
        (lambda x: torch.cat((x[:, :, :16], x[:, :, :16].flip(-1)), dim=-1), False),  # two of them, or none
        (lambda x: torch.full_like(x, 0.5), False),
        (lambda x: torch.zeros_like(x), False),
    ],
)
def test_the_checker_is_strict_but_not_brittle(image, verdict: bool) -> None:  # noqa: ANN001
    index = next(k for k, text in enumerate(SCENES.captions) if text == "a red triangle")
    assert check(image(IMAGES[index])[None], ["a red triangle"]).item() == verdict
