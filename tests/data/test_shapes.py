import pytest
import torch
from pydantic import ValidationError

from tmatch.data.shapes import AREA, OBJECTS, SHAPES, SIZE, SKILLS, ShapeImages, Shapes, coverage
from tmatch.datasets import ShapesData, shapes_split
from tmatch.recipes import RECIPES


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


def test_captions_say_where_objects_are() -> None:
    """In an image, rows are counted from the top and columns from the left."""
    scenes = Shapes(2).scenes(range(3000))
    seen = set()
    for text, centre, skill in zip(scenes.captions, scenes.centre, scenes.skill, strict=True):
        if SKILLS[skill] == "position":
            down, right = (centre[0] - centre[1]).tolist()
            words = text.split()
            seen.add(words[2])
            assert {"left": -right > abs(down), "right": right > abs(down), "above": -down > abs(right),
                    "below": down > abs(right)}[words[2]], text  # fmt: skip
    assert len(seen) == 4


def drawn(data: ShapeImages) -> set[tuple[float, ...]]:
    """The scenes of images, by the exact places of their objects."""
    return {tuple(row) for row in data.shapes.scenes(data.index).centre.flatten(1).tolist()}


SHAPES_DATA = {name: data for name, recipe in RECIPES.items() if isinstance(data := recipe().data, ShapesData)}


def test_no_image_is_in_two_splits() -> None:
    """For the data of every recipe: training, validation, test and withheld sentences."""
    assert "shapes-autoencoder" in SHAPES_DATA
    for data in {repr(data): data for data in SHAPES_DATA.values()}.values():
        small = data.model_copy(update={"images": 400})
        test, settings = (small.eval_prompts(200, split) for split in ("test", "validation"))
        parts = [drawn(images) for images in (small.training(), small.validation(200), test)]
        assert [len(part) for part in parts] == [400, 200, 200]
        assert len(set.union(*parts)) == 800
        assert drawn(settings) == parts[1], "settings are chosen by the validation images"
        assert not drawn(shapes_split(50, "withheld")) & (parts[0] | parts[1])
    for split in ("test", "validation"):
        with pytest.raises(ValidationError, match="seed"):
            ShapesData(seed=shapes_split(1, split).shapes.seed)


def test_each_meaning_has_one_caption() -> None:
    captions = set(Shapes(0).scenes(range(4000)).captions)
    assert "a circle and a square" in captions
    assert "a square and a circle" not in captions
    assert "three crosses" in captions
    assert len(captions) > 250
