"""The flow head acts on each token separately; a joint head attends across tokens."""

import pytest
import torch
from laws import SHAPE, Reading, awake, small_dit
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

import tmatch as tm
from tmatch.head import HEADS

N = SHAPE[0] * SHAPE[1]


def head() -> tm.FlowHead:
    return awake(tm.FlowHead(channels=3, context_width=5, width=16, depth=2))  # type: ignore[return-value]


def inputs() -> dict[str, Tensor]:
    """Two images, two samples per token, four tokens."""
    return {"y": torch.randn(2, 2, 4, 3), "h": torch.randn(2, 1, 4, 5), "s": torch.rand(2, 2, 4), "t": torch.rand(2)}


def test_tokens_do_not_see_each_other() -> None:
    g, given = head(), inputs()
    before = g(given["y"], torch.tensor(0.3), g.prepare(given["h"], given["t"]))
    given["y"][:, :, 2], given["h"][:, :, 2] = 9.0, -9.0
    after = g(given["y"], torch.tensor(0.3), g.prepare(given["h"], given["t"]))
    assert ((after - before).abs().amax((0, 1, 3)) > 0).tolist() == [False, False, True, False]


def test_a_scalar_s_equals_the_same_s_for_each_token() -> None:
    g, given = head(), inputs()
    context, y = g.prepare(given["h"], given["t"]), given["y"]
    each = torch.full((2, 2, 4), 0.3)
    torch.testing.assert_close(g(y, torch.tensor(0.3, dtype=torch.float64), context), g(y, each, context))


def test_an_untimed_head_takes_no_time() -> None:
    g, given = tm.FlowHead(3, 5, 16, 2, timed=False), inputs()
    assert g(given["y"], torch.tensor(0.3), g.prepare(given["h"], None)).shape == given["y"].shape
    for network, t in ((g, torch.rand(2)), (head(), None)):
        with pytest.raises(ValueError, match="needs a time t"):
            network.prepare(given["h"], t)


@pytest.mark.parametrize("what", ["y", "h", "s", "t"])
def test_the_velocity_depends_on_every_input(what: str) -> None:
    g, given = head(), inputs()

    def velocity(y: Tensor, h: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return g(y, s, g.prepare(h, t))

    before = velocity(**given)
    after = velocity(**{**given, what: given[what] * 0.5})
    assert ((after - before).abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("timed", [True, False])
def test_a_head_written_out(timed: bool) -> None:
    """x + gate MLP((1 + scale) norm(x) + shift), with shift, scale and gate linear in silu(h) and silu(s + t)."""
    g, given = awake(tm.FlowHead(channels=3, context_width=5, width=16, depth=2, timed=timed)), inputs()
    y, h = given["y"], g.h_in(given["h"])
    t = given["t"] if timed else None
    time = g.s_in(given["s"]) + (g.t_in(given["t"])[:, None, None] if timed else 0)
    x = g.y_in(y) + h
    for block, from_h in zip(g.blocks, g.h_modulations, strict=True):
        shift, scale, gate = (from_h(silu(h)) + g.time_modulation(silu(time))).chunk(3, dim=-1)
        x = x + gate * block.mlp((1 + scale) * layer_norm(x, (16,)) + shift)
    shift, scale = g.out_modulation(silu(time)).chunk(2, dim=-1)
    expected = g.out((1 + scale) * layer_norm(x, (16,)) + shift)
    torch.testing.assert_close(g(y, given["s"], g.prepare(given["h"], t)), expected, atol=1e-5, rtol=1e-5)


class JointHead(tm.Head):
    """A small head that mixes all tokens of an image."""

    joint = True

    def __init__(self, channels: int, context_width: int, width: int = 8, depth: int = 1, timed: bool = True) -> None:
        super().__init__()
        self.channels = channels
        self.linear = nn.Linear(channels + context_width + 1, channels)

    def prepare(self, h: Tensor, t: Tensor | None, cache: object = None) -> Tensor:
        return h

    def forward(self, y: Tensor, s: Tensor, context: Tensor, r: Tensor | None = None) -> Tensor:
        s = s.to(y.dtype).reshape(*s.shape, *[1] * (4 - s.ndim)).expand(*y.shape[:-1], 1)
        x = self.linear(torch.cat((y, context.expand(*y.shape[:-1], -1), s), dim=-1))
        return x + x.mean(2, keepdim=True)


JOINT = pytest.mark.parametrize("kind", [JointHead, *(kind for kind in HEADS.values() if kind.joint)])


def joint_kernel(kind: type[tm.Head]) -> tm.ParallelFlow:
    torch.manual_seed(0)
    head = awake(kind(SHAPE[-1], SHAPE[-1], 16, 1, True))
    return tm.ParallelFlow(Reading(), tm.Flow(head, samples_per_token=2))  # type: ignore[arg-type]


@JOINT
def test_a_joint_head_sees_all_tokens_in_training(kind: type[tm.Head]) -> None:
    """The gradient of the head's output at every token with respect to the context of every token."""
    kernel = joint_kernel(kind)
    seen: list[Tensor] = []
    kernel.head.register_forward_hook(lambda _, args, u: seen.extend((args[0], args[1], u)))
    x = tm.RandomStreams(range(2)).normal(*SHAPE).requires_grad_()
    kernel.loss(torch.zeros(2, *SHAPE), x, torch.rand(2), None, tm.RandomStreams(range(2)))
    y, s, u = seen
    assert (y.shape, s.shape) == ((2, 2, N, SHAPE[-1]), (2, 2)), "one s per image and sample"
    for i in range(N):
        (gradient,) = torch.autograd.grad(u[:, :, i].sum(), x, retain_graph=True)
        assert (gradient.flatten(1, 2).abs().amax((0, 2)) > 0).all()


@JOINT
def test_a_joint_head_sees_all_tokens_in_sampling(kind: type[tm.Head]) -> None:
    """On a grid of two rows: perturbing token j changes the samples of all tokens."""
    kernel, x = joint_kernel(kind), tm.RandomStreams(range(2)).normal(*SHAPE)

    def sample(x: Tensor) -> Tensor:
        times = torch.tensor([0.5, 1.0])
        with torch.no_grad():
            return kernel.sample(x, *times, None, tm.RandomStreams(range(2)), tm.SamplingParams()).flatten(1, 2)

    before = sample(x)
    for j in range(N):
        other = x.flatten(1, 2).clone()
        other[:, j] += 1
        assert ((sample(other.view_as(x)) - before).abs().amax((0, 2)) > 1e-6).all()


def test_a_joint_head_is_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEADS, "joint", JointHead)
    model = tm.build("dtm", small_dit(None), SHAPE[-1], tm.HeadConfig(kind="joint", patch=(1, 3)))
    assert tm.generate(model, SHAPE, range(2), steps=2).x.shape == (2, *SHAPE)
    for name in ("ar", "fhtm-2", "mar"):
        row = tm.variant(name)
        with pytest.raises(ValueError, match="JointHead is a joint head"):
            tm.build(name, small_dit(None, 24 if row.embeds else 4, row.timed), 4, tm.HeadConfig(kind="joint"))
    with pytest.raises(ValueError, match="set token_fraction to 1"):
        tm.build("dtm", small_dit(None), SHAPE[-1], tm.HeadConfig(kind="joint", token_fraction=0.5))
