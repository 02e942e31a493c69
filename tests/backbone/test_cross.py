"""Cross-attention with folded projections equals the direct computation."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from laws import awake
from torch import nn
from torch.testing import assert_close

import tmatch as tm
from tmatch.backbone.cross import CrossAttention

WIDTH, HEADS = 24, 2


def caption(length: int, width: int = WIDTH) -> tm.Condition:
    """A batch of two: one of full length, one of a single vector."""
    return tm.Condition(torch.randn(2, length, width), torch.arange(length) < torch.tensor([[length], [1]]))


def unfolded(layer: CrossAttention) -> CrossAttention:
    """The same layer without folding."""
    other = CrossAttention(WIDTH, HEADS).to(layer.q.weight.dtype)
    other.load_state_dict(layer.state_dict())
    other.folds = lambda length, tokens: False
    return other


@pytest.mark.parametrize("length", [1, 2, 5])
def test_folding_changes_neither_the_result_nor_any_gradient(length: int) -> None:
    layer = awake(CrossAttention(WIDTH, HEADS)).double()
    x, given = torch.randn(2, 60, WIDTH).double(), caption(length)
    results = []
    assert layer.folds(length, 60)
    for one in (layer, unfolded(layer)):
        tokens, text = x.clone().requires_grad_(), given.tokens.double().requires_grad_()
        y = one(tokens, one.keys(tm.Condition(text, given.mask)))
        y.square().sum().backward()
        results.append([y, tokens.grad, text.grad, *(p.grad for p in one.parameters())])
    for folded, separate in zip(*results, strict=True):
        assert_close(folded, separate, atol=1e-9, rtol=1e-9)


def test_a_condition_of_padding_alone_adds_the_bias() -> None:
    layer, x = awake(CrossAttention(WIDTH, HEADS)), torch.randn(2, 60, WIDTH)
    nothing = tm.Condition(torch.randn(2, 3, WIDTH), torch.zeros(2, 3, dtype=torch.bool))
    assert layer.folds(3, 60)
    for one in (layer, unfolded(layer)):
        assert_close(one(x, one.keys(nothing)), layer.out.bias.expand_as(x))


def test_padding_has_no_influence() -> None:
    layer, x, given = awake(CrossAttention(WIDTH, HEADS)), torch.randn(2, 60, WIDTH), caption(3)
    assert layer.folds(3, 60)
    hidden = tm.Condition(given.tokens.masked_fill(~given.mask[..., None], 1e6), given.mask)
    for one in (layer, unfolded(layer)):
        assert_close(one(x, one.keys(hidden)), one(x, one.keys(given)))


def test_neither_decoding_nor_qk_norm_folds() -> None:
    """In decoding, every token would read keys and values as wide as itself."""
    assert not any(CrossAttention(64, heads).folds(length, 1) for heads in (1, 2, 8) for length in range(1, 99))
    assert not CrossAttention(WIDTH, HEADS, qk_norm=True).folds(1, 256)


@pytest.mark.parametrize("tokens", [4, 64, 256])
@pytest.mark.parametrize("length", [1, 8, 64])
def test_folding_needs_to_save_a_third(tokens: int, length: int, benchmark: Callable[[str], ModuleType]) -> None:
    flops = benchmark("flops").flops
    layer = CrossAttention(WIDTH, HEADS).requires_grad_(False)
    x, given = torch.randn(2, tokens, WIDTH), caption(length)
    counts = []
    for folds in (True, False):
        layer.folds = lambda length, tokens, folds=folds: folds
        counts.append(flops(lambda: layer(x, layer.keys(given))) - flops(lambda: layer.kv(given.tokens)))
    folded, separate = counts
    biases = 2 * 2 * length * WIDTH  # of the scores, which the rule ignores
    assert CrossAttention(WIDTH, HEADS).folds(length, tokens) == (3 * (folded - biases) < 2 * separate)


class Adapted(nn.Linear):
    """Adds to a linear layer, as LoRA does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


REPLACEMENTS: dict[str, Callable[[nn.Linear], object]] = {
    "another class": lambda layer: setattr(layer, "__class__", Adapted),
    "a hook": lambda layer: layer.register_forward_hook(lambda _, inputs, y: y + inputs[0]),
    "a hook before": lambda layer: layer.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],)),
}


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("part", ["q", "out"])
def test_replaced_projections_are_called(part: str, kind: str) -> None:
    layer, x, given = awake(CrossAttention(WIDTH, HEADS)), torch.randn(2, 60, WIDTH), caption(2)
    assert layer.folds(2, 60)
    before = layer(x, layer.keys(given))
    REPLACEMENTS[kind](getattr(layer, part))
    assert not layer.folds(2, 60)
    assert not torch.allclose(layer(x, layer.keys(given)), before, atol=1e-2)
