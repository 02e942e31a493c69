import pytest
import torch
from laws import SHAPE, awake, condition, small_dit
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

import tmatch as tm
from tmatch.backbone import grid_positions


def parameters(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_sizes_of_the_paper() -> None:
    with torch.device("meta"):
        backbone = tm.DiT(channels=16, width=2048, depth=24, heads=16, condition_width=4096)
        model = tm.build("dtm", backbone, channels=16, head=tm.HeadConfig(width=1024))
        llama = tm.Llama(16, width=2048, depth=34, heads=16, condition_width=4096)
    assert parameters(backbone) == pytest.approx(1.7e9, rel=0.05)
    assert parameters(llama) == pytest.approx(1.7e9, rel=0.05)
    assert parameters(model.kernel.head) == pytest.approx(40e6, rel=0.10)


def test_the_modulation_is_shared_between_blocks() -> None:
    one, two = (parameters(tm.DiT(4, 32, depth, 2)) for depth in (1, 2))
    assert two - one < 12.5 * 32**2  # 4 d^2 of attention and 8 d^2 of MLP, not 6 d^2 more


def sinusoids(x: Tensor, frequencies: int, max_period: float) -> Tensor:
    """As in Vaswani et al. (2017), cosines first."""
    angles = x[..., None] * max_period ** -(torch.arange(frequencies / 2) / (frequencies / 2))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor) -> Tensor:
    """Head by head, with the scores of hidden keys at -inf."""
    parts = []
    for one_q, one_k, one_v in zip(*(x.chunk(heads, dim=-1) for x in (q, k, v)), strict=True):
        scores = one_q @ one_k.mT / one_q.shape[-1] ** 0.5
        parts.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ one_v)
    return torch.cat(parts, dim=-1)


@pytest.mark.parametrize("prefix", [None, 0, 4])
def test_a_dit_written_out(prefix: int | None) -> None:
    """Peebles and Xie (2023) with one modulation for all blocks, plus cross-attention."""
    f, x, t, given = awake(small_dit()), torch.randn(2, *SHAPE), torch.tensor([0.1, 0.7]), condition(2).padded(5)
    tokens, width = x.flatten(1, 2), f.width
    time = f.time.embedding.linear_2(silu(f.time.embedding.linear_1(sinusoids(1000 * t, 256, 10_000.0))))
    modulation = f.time.linear(silu(time))[:, None]
    places = torch.tensor([[0.0, row, column] for row in range(SHAPE[0]) for column in range(SHAPE[1])])
    text = f.condition_in(given.tokens)
    index = torch.arange(len(places))
    seen = index <= index[:, None] if prefix is not None else torch.ones(len(places), len(places), dtype=torch.bool)
    seen = seen | ((index < (prefix or 0)) & (index[:, None] < (prefix or 0)))
    h = f.x_in(tokens) + f.position.linear(sinusoids(places, 64, 100.0).flatten(-2))
    for block in f.blocks:
        parts = (modulation[..., : 6 * width] + block.offsets).split(width, dim=-1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
        q, k, v = block.attention.qkv(layer_norm(h, (width,)) * (1 + scale_a) + shift_a).split(width, dim=-1)
        h = h + gate_a * block.attention.out(attention(q, k, v, f.heads, seen))
        q = block.cross.q(layer_norm(h, (width,), block.cross_norm.weight, block.cross_norm.bias))
        k, v = block.cross.kv(text).split(width, dim=-1)
        h = h + block.cross.out(attention(q, k, v, f.heads, given.mask[:, None]))
        inner = gelu(block.mlp[0](layer_norm(h, (width,)) * (1 + scale_m) + shift_m), approximate="tanh")
        h = h + gate_m * block.mlp[2](inner)
    shift, scale = modulation[..., 6 * width :].split(width, dim=-1)
    expected = layer_norm(h, (width,)) * (1 + scale) + shift
    torch.testing.assert_close(f(x, t, given, prefix=prefix).flatten(1, 2), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("grid", [(4,), (2, 3), (3, 2), (1, 7)])
def test_any_grid_of_tokens(grid: tuple[int, ...], qk_norm: bool) -> None:
    f = tm.DiT(4, 24, 2, 2, condition_width=8, qk_norm=qk_norm)
    assert f(torch.randn(2, *grid, 4), torch.rand(2), condition(2)).shape == (2, *grid, 24)


def test_without_a_mask_attention_is_full() -> None:
    f, x, t, given = awake(small_dit()), torch.randn(1, *SHAPE), torch.rand(1), condition(1)
    before = f(x, t, given)
    for row, column in [(0, 0), (1, 2)]:
        other = x.clone()
        other[:, row, column] += 1
        assert ((f(other, t, given) - before).abs().amax((0, 3)) > 1e-6).all()


def test_qk_norm_makes_attention_scale_invariant() -> None:
    x, t = torch.randn(1, 6, 4), torch.rand(1)
    for qk_norm in (False, True):
        f = awake(tm.DiT(4, 24, 1, 2, qk_norm=qk_norm))
        before = f(x, t)
        with torch.no_grad():
            f.blocks[0].attention.qkv.weight[:48] *= 10  # queries and keys
            f.blocks[0].attention.qkv.bias[:48] *= 10
        assert torch.allclose(f(x, t), before, atol=1e-4) == qk_norm


def test_an_untimed_backbone_trains_all_parameters() -> None:
    f = awake(tm.DiT(4, 24, 2, 2, timed=False))
    f(torch.randn(2, *SHAPE), None).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in f.parameters())
    with pytest.raises(ValueError, match="needs a time t"):
        f(torch.randn(2, *SHAPE), torch.rand(2))


def test_order_enters_by_positions_alone() -> None:
    f, x, t, given = awake(small_dit()), torch.randn(1, 6, 4), torch.rand(1), condition(1)
    positions, order = grid_positions((2, 3)), torch.randperm(6)
    straight = f(x, t, given, positions=positions)
    torch.testing.assert_close(f(x[:, order], t, given, positions=positions[order]), straight[:, order])
    for axis in range(3):
        moved = positions.clone()
        moved[4, axis] += 1
        assert not torch.allclose(f(x, t, given, positions=moved), straight, atol=1e-4)


def test_grid_positions() -> None:
    assert grid_positions((2, 2), step=3).tolist() == [[3, 0, 0], [3, 0, 1], [3, 1, 0], [3, 1, 1]]
    assert grid_positions((3,)).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    with pytest.raises(ValueError, match="one or two dimensions"):
        grid_positions((2, 2, 2))


def test_invalid_input_is_rejected() -> None:
    x, t = torch.randn(2, *SHAPE), torch.rand(2)
    with pytest.raises(ValueError, match="width 8; got 7"):
        small_dit()(x, t, condition(2, width=7))
    with pytest.raises(ValueError, match="needs a condition"):
        small_dit()(x, t)
    with pytest.raises(ValueError, match="is unconditional"):
        small_dit(None)(x, t, condition(2))
    with pytest.raises(ValueError, match="tokens of 4 channels"):
        small_dit(None)(torch.randn(2, 2, 3, 5), t)
    with pytest.raises(ValueError, match="must be divisible by its heads"):
        tm.DiT(4, 30, 1, 4)
    for sizes in ((0, 1, 2), (16, -1, 2), (16, 1, 0)):
        for backbone in (tm.DiT, tm.Llama):
            with pytest.raises(ValueError, match="must be a positive integer"):
                backbone(4, *sizes)
    with pytest.raises(ValueError, match="The state has shape"):
        tm.MLP((1,), 2)(torch.randn(3, 2, 2), torch.rand(3))
    with pytest.raises(ValueError, match="takes no condition"):
        tm.MLP((1,), 2)(torch.randn(3, 1, 2), torch.rand(3), condition(3))
