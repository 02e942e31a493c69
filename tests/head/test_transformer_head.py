"""The Transformer head: all tokens of an image at once."""

import pytest
import torch
from laws import awake
from torch import Tensor

import tmatch as tm


def head(timed: bool = True) -> tm.TransformerHead:
    torch.manual_seed(0)
    return awake(tm.TransformerHead(channels=3, context_width=5, width=16, depth=2, timed=timed))  # type: ignore[return-value]


def inputs(tokens: int = 4) -> dict[str, Tensor]:
    """Two images, two samples per token, one s for each of them."""
    y, h = torch.randn(2, 2, tokens, 3), torch.randn(2, 1, tokens, 5)
    return {"y": y, "h": h, "s": torch.rand(2, 2), "t": torch.rand(2)}


def velocity(g: tm.TransformerHead, y: Tensor, h: Tensor, s: Tensor, t: Tensor | None) -> Tensor:
    return g(y, s, g.prepare(h, t))


def test_an_untrained_head_has_no_velocity() -> None:
    assert velocity(tm.TransformerHead(3, 5, 16, 2), **inputs()).abs().max() == 0


@pytest.mark.parametrize("tokens", [1, 6, 200])
def test_it_takes_any_number_of_tokens(tokens: int) -> None:
    assert velocity(head(), **inputs(tokens)).shape == (2, 2, tokens, 3)


def test_a_scalar_s_equals_the_same_s_for_each_image() -> None:
    g, given = head(), inputs()
    one, each = (
        velocity(g, **{**given, "s": s}) for s in (torch.tensor(0.3, dtype=torch.float64), torch.full((2, 2), 0.3))
    )
    torch.testing.assert_close(one, each)


def test_samples_do_not_see_each_other() -> None:
    g, given = head(), inputs()
    both = velocity(g, **given)
    for k in range(2):
        alone = velocity(g, given["y"][:, k : k + 1], given["h"], given["s"][:, k : k + 1], given["t"])
        torch.testing.assert_close(alone, both[:, k : k + 1])


def test_an_untimed_head_takes_no_time() -> None:
    given = inputs()
    assert velocity(head(timed=False), **{**given, "t": None}).shape == given["y"].shape
    for g, t in ((head(timed=False), torch.rand(2)), (head(), None)):
        with pytest.raises(ValueError, match="needs a time t"):
            g.prepare(given["h"], t)


@pytest.mark.parametrize("what", ["y", "h", "s", "t"])
def test_the_velocity_depends_on_every_input(what: str) -> None:
    g, given = head(), inputs()
    before = velocity(g, **given)
    after = velocity(g, **{**given, what: given[what] * 0.5})
    assert ((after - before).abs().amax(-1) > 1e-6).all()


def test_equal_tokens_differ_by_their_position() -> None:
    """h need not tell where a token is."""
    given = inputs()
    given["y"], given["h"] = given["y"][:, :, :1].expand(-1, -1, 4, -1), given["h"][:, :, :1].expand(-1, -1, 4, -1)
    u = velocity(head(), **given)
    assert (u.diff(dim=2).abs().amax((0, 1, 3)) > 1e-4).all()
