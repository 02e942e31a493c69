import pytest
import torch

from tmatch.data.shapes import AREA, OBJECTS, SHAPES, SIZE, SKILLS, Shapes, coverage


def test_seed_and_index_determine_an_image() -> None:
    some, one = Shapes(3).scenes(range(40)), Shapes(3).scenes([17])
    assert one.captions[0] == some.captions[17]
    assert torch.equal(one.render()[0], some.render()[17])
    assert Shapes(4).scenes([17]).captions[0] != "" and not torch.equal(Shapes(4).scenes([17]).render(), one.render())  # noqa: PT018


def test_skills_are_equally_frequent() -> None:
    counts = Shapes(0).scenes(range(6000)).skill.bincount(minlength=len(SKILLS))
    assert (counts - 1000).abs().max() < 5 * (6000 * 5 / 36) ** 0.5


def test_objects_are_complete_and_do_not_overlap() -> None:
    scenes = Shapes(1).scenes(range(1000))
    covers = torch.stack(
        [
            coverage(scenes.shape[:, k].clamp(min=0), scenes.centre[:, k], scenes.size[:, k])
            * (scenes.shape[:, k] >= 0)[:, None, None]
            for k in range(OBJECTS)
        ]
    )
    assert covers.sum(0).max() <= 1, "objects do not overlap"
    edge = torch.ones(SIZE, SIZE, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    whole = AREA[scenes.shape.clamp(min=0)] * scenes.size**2 * (scenes.shape >= 0)
    assert (covers.sum((2, 3)).T - whole).abs().max() < 0.1 * whole.max(), "objects are not cut off"


@pytest.mark.parametrize("name", SHAPES)
def test_anti_aliasing_preserves_area_and_position(name: str) -> None:
    centre, size = torch.tensor([15.3, 16.8]), torch.tensor(5.4)
    cover = coverage(torch.tensor(SHAPES.index(name)), centre, size)
    assert cover.sum() == pytest.approx(AREA[SHAPES.index(name)].item() * 5.4**2, rel=0.03)
    columns = torch.arange(SIZE) + 0.5
    assert (cover.sum(0) * columns).sum() / cover.sum() == pytest.approx(16.8, abs=0.05)
    assert ((cover > 0) & (cover < 1)).sum() > 8


def test_each_meaning_has_one_caption() -> None:
    captions = set(Shapes(0).scenes(range(4000)).captions)
    assert "a circle and a square" in captions
    assert "a square and a circle" not in captions
    assert "three crosses" in captions
    assert len(captions) > 250
