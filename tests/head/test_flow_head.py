import pytest
import torch
from laws import awake

import tmatch as tm


def head() -> tm.FlowHead:
    return awake(tm.FlowHead(channels=3, context_width=5, width=16, depth=2))  # type: ignore[return-value]


def test_tokens_do_not_see_each_other() -> None:
    g, y, h, t = head(), torch.randn(2, 4, 3), torch.randn(2, 4, 5), torch.rand(2)
    before = g(y, torch.tensor(0.3), g.prepare(h, t))
    y[:, 2], h[:, 2] = 9.0, -9.0
    changed = (g(y, torch.tensor(0.3), g.prepare(h, t)) - before).abs().amax((0, 2)) > 0
    assert changed.tolist() == [False, False, True, False]


def test_one_time_for_all_tokens_is_the_same_time_for_each() -> None:
    g, y, h, t = head(), torch.randn(2, 4, 3), torch.randn(2, 4, 5), torch.rand(2)
    context = g.prepare(h, t)
    each = torch.full((2, 4), 0.3)
    torch.testing.assert_close(g(y, torch.tensor(0.3, dtype=torch.float64), context), g(y, each, context))


def test_a_head_without_time_takes_none() -> None:
    g, y, h = tm.FlowHead(3, 5, 16, 2, timed=False), torch.randn(2, 4, 3), torch.randn(2, 4, 5)
    assert g(y, torch.tensor(0.3), g.prepare(h, None)).shape == y.shape
    for network, t in ((g, torch.rand(2)), (head(), None)):
        with pytest.raises(ValueError, match="called with a time t"):
            network.prepare(h, t)


@pytest.mark.parametrize("what", ["y", "h", "s", "t"])
def test_the_velocity_depends_on_everything(what: str) -> None:
    inputs = {"y": torch.randn(2, 4, 3), "h": torch.randn(2, 4, 5), "s": torch.rand(2, 4), "t": torch.rand(2)}
    g = head()

    def velocity(y: torch.Tensor, h: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return g(y, s, g.prepare(h, t))

    before = velocity(**inputs)
    after = velocity(**{**inputs, what: inputs[what] * 0.5})
    assert ((after - before).abs().amax(-1) > 1e-6).all()
