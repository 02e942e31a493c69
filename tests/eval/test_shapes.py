from itertools import combinations

import pytest
import torch
from torch import Tensor

from tmatch.data.shapes import BACKGROUND, COLOURS, SHAPES, SKILLS, Scenes, Shapes, signed_distance
from tmatch.eval.shapes import check, detect

ROWS, COLUMNS = torch.meshgrid(*[torch.arange(32) - 15.5] * 2, indexing="ij")  # from the centre of the image
GROUND = torch.tensor(BACKGROUND)[:, None, None]
DISC = (7 - (ROWS**2 + COLUMNS**2).sqrt()).clamp(0, 1)  # how much of a pixel it covers
CORNERS = torch.tensor([[6.0, 6.0], [6.0, 26.0], [26.0, 6.0], [26.0, 26.0]])
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


def painted(cover: Tensor, colour: Tensor | str = "red") -> Tensor:
    """An image (3, 32, 32) of one figure."""
    ink = torch.tensor(COLOURS[colour]) if isinstance(colour, str) else colour
    return GROUND + cover * (ink[:, None, None] - GROUND)


def figure(distance: Tensor) -> Tensor:
    """How much of each pixel is inside an outline, from the signed distance to it."""
    return (0.5 - distance).clamp(0, 1)


def turned(shape: str, degrees: int) -> Tensor:
    angle = torch.tensor(degrees).deg2rad()
    x, y = angle.cos() * COLUMNS + angle.sin() * ROWS, angle.cos() * ROWS - angle.sin() * COLUMNS
    return figure(signed_distance(torch.tensor(SHAPES.index(shape)), x, y, torch.tensor(6.0)))


def ellipse(ratio: float) -> Tensor:
    return figure(((COLUMNS / ratio) ** 2 + (ROWS * ratio) ** 2).sqrt() - 6)


def bar(ratio: float) -> Tensor:
    return figure(torch.maximum(COLUMNS.abs() - 5 * ratio, ROWS.abs() - 5 / ratio))


RADIUS = (ROWS**2 + COLUMNS**2).sqrt()
FIGURES = {
    **{f"a triangle turned by {angle} degrees": (turned("triangle", angle), "?") for angle in (45, 90, 180)},
    "half a disc": (figure(torch.maximum(RADIUS - 7, ROWS)), "?"),
    "a ring": (figure(torch.maximum(RADIUS - 7, 3 - RADIUS)), "?"),
    "an ellipse twice as wide as high": (ellipse(2**0.5), "?"),
    "a bar twice as wide as high": (bar(2**0.5), "?"),
    "three quarters of a square": (
        figure(torch.maximum(ROWS.abs(), COLUMNS.abs()) - 6) * ((ROWS < 0) | (COLUMNS < 0)),
        "?",
    ),
    "a slightly flat circle": (ellipse(1.1), "circle"),
    "a slightly flat square": (bar(1.1), "square"),
    "a triangle turned by 5 degrees": (turned("triangle", 5), "triangle"),
    "a cross turned by 5 degrees": (turned("cross", 5), "cross"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_recognised_only_if_it_has_the_shape(name: str) -> None:
    cover, shape = FIGURES[name]
    ((found,),) = detect(painted(cover)[None])
    assert (found.shape, found.colour) == (shape, "red")


def test_a_colour_between_two_is_neither() -> None:
    """Half way; but blue and red make purple, and blue and purple, red and yellow are close."""
    near = ({"blue", "red"}, {"blue", "purple"}, {"red", "yellow"})
    for pair in combinations(COLOURS, 2):
        mixed = torch.tensor([COLOURS[name] for name in pair]).mean(0)
        names = {found.colour for found in detect(painted(DISC, mixed)[None])[0]}
        assert names <= ({"?"} if set(pair) not in near else {"?", "purple", *pair}), pair


@pytest.mark.parametrize("colour", COLOURS)
def test_a_colour_may_be_a_little_off(colour: str) -> None:
    pure = torch.tensor(COLOURS[colour])
    for towards in (0.0, 0.5, 1.0):  # black, grey and white
        ((found,),) = detect(painted(DISC, pure + 0.2 * (towards - pure))[None])
        assert found.colour == colour


@pytest.mark.parametrize("colour", COLOURS)
def test_a_pixel_belongs_to_an_object_if_it_is_nearer_to_its_colour_than_to_the_background(colour: str) -> None:
    counts = [len(detect(painted(opacity * DISC, colour)[None])[0]) for opacity in (0.3, 0.45, 0.55, 0.7)]
    assert counts == [0, 0, 1, 1]


def test_specks_are_not_objects_and_small_figures_are() -> None:
    image = painted(DISC, "red")
    for height, width, count in ((1, 1, 1), (2, 2, 1), (2, 3, 1), (3, 3, 2), (4, 4, 2)):
        spotted = image.clone()
        spotted[:, 1 : 1 + height, 1 : 1 + width] = torch.tensor(COLOURS["blue"])[:, None, None]
        assert len(detect(spotted[None])[0]) == count


def test_one_object_too_many_or_too_few_breaks_every_caption() -> None:
    """One is removed, or one of the same shape or of another is added in a corner where there is room."""
    cases = []
    for k in range(80):
        present = SCENES.shape[k] >= 0
        away = torch.cdist(CORNERS, SCENES.centre[k][present]).amin(1)
        for change in ("removed", "same", "other"):
            shape, colour, centre = (x[k].clone() for x in (SCENES.shape, SCENES.colour, SCENES.centre))
            if change == "removed":
                shape[int(present.sum()) - 1] = -1
            elif not present.all() and away.max() > 15:
                new = int(present.sum())
                shape[new], colour[new] = (shape[0] + (change == "other")) % 4, colour[0]
                centre[new] = CORNERS[away.argmax()]
            else:
                continue
            cases.append((SCENES.captions[k], SKILLS[SCENES.skill[k]], change, shape, colour, centre, SCENES.size[k]))
    captions, skills, changes, *objects = zip(*cases, strict=True)
    images = Scenes(*map(torch.stack, objects), torch.zeros(len(cases)), list(captions)).render()
    accepted = check(images, captions).tolist()
    assert [case[:3] for case, wrong in zip(cases, accepted, strict=True) if wrong] == []
    assert len({*zip(skills, changes, strict=True)}) == 3 * len(SKILLS)


@pytest.mark.parametrize("flip", [[], [-1], [-2]], ids=["", "mirrored", "upside down"])
def test_left_is_left_and_above_is_above(flip: list[int]) -> None:
    """A circle and a square, both of which look the same in a mirror."""
    for centre, relations in (([[16.0, 8.0], [16.0, 24.0]], ("left of", "right of")),
                              ([[8.0, 16.0], [24.0, 16.0]], ("above", "below"))):  # fmt: skip
        shapes = torch.tensor([[SHAPES.index("circle"), SHAPES.index("square"), -1, -1]])
        places = torch.tensor([[*centre, [0.0, 0.0], [0.0, 0.0]]])
        nothing = torch.zeros(1, 4)
        image = Scenes(shapes, nothing.long(), places, nothing + 5, torch.zeros(1), [""]).render().flip(flip)
        mirrored = flip == ([-1] if "left of" in relations else [-2])
        verdicts = [bool(check(image, [f"a circle {relation} a square"])) for relation in relations]
        assert verdicts == ([False, True] if mirrored else [True, False])
        verdicts = [bool(check(image, [f"a square {relation} a circle"])) for relation in relations]
        assert verdicts == ([True, False] if mirrored else [False, True])
