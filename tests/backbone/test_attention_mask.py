"""Attention without masks equals attention with masks, and training uses the former."""

import pytest
import torch
from laws import awake, data_of, shape_of, small_model
from torch import Tensor

import tmatch as tm
from tmatch.backbone import attention, dit
from tmatch.backbone.attention import AttentionMask, attend, attention_mask
from tmatch.backbone.cache import read_condition
from tmatch.plan.training import loss_of

LENGTH, TOKENS = 6, 5


def masked(f: tm.Llama, x: Tensor, given: tm.Condition) -> Tensor:
    """The Llama in text order: padding stays in place, and a mask hides it."""
    text = read_condition(f.condition_in, given, len(x))
    context = f._context(text, len(x), x.shape[1])
    assert context.valid is not None
    return f._run(torch.cat((text.tokens, f.x_in(x)), dim=1), context)[:, LENGTH:]


def text(*lengths: int) -> tm.Condition:
    """Captions of given lengths, with large values under the padding."""
    valid = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    tokens = tm.RandomStreams(range(len(lengths))).normal(LENGTH, 8)
    return tm.Condition(torch.where(valid[..., None], tokens, 50.0 * tokens), valid)


def results(y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The output, and its gradients."""
    return (y, *torch.autograd.grad(y.sin().sum(), inputs))


@pytest.mark.parametrize("lengths", [(6, 6), (0, 0), (0, 6), (3, 1, 6, 0), (2,)], ids=str)
@pytest.mark.parametrize("scattered", [False, True])
def test_moving_padding_to_the_end_equals_masking_it(lengths: tuple[int, ...], scattered: bool) -> None:
    f, given = awake(tm.Llama(4, 24, 2, 2, condition_width=8)), text(*lengths)
    if scattered:  # padding may be anywhere
        order = torch.tensor([4, 0, 5, 1, 3, 2])
        given = tm.Condition(given.tokens[:, order], given.mask[:, order])
    x = torch.randn(len(lengths), TOKENS, 4, requires_grad=True)
    given.tokens.requires_grad_()
    inputs = (x, given.tokens, *f.parameters())
    packed = results(f(x, condition=given, prefix=0), *inputs)
    for ours, theirs in zip(packed, results(masked(f, x, given), *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert (packed[2][~given.mask] == 0).all(), "padding has no influence"


@pytest.mark.parametrize("lengths", [(6, 6), (0, 0), (3, 1, 6, 0)], ids=str)
def test_decoding_after_padded_texts_equals_the_full_pass(lengths: tuple[int, ...]) -> None:
    f, given, x = awake(tm.Llama(4, 24, 2, 2, condition_width=8)), text(*lengths), torch.randn(len(lengths), TOKENS, 4)
    cache = f.init_cache(None, given, len(x), TOKENS)
    one_by_one = torch.cat([f(part, prefix=0, cache=cache) for part in x.split(1, dim=1)], dim=1)
    torch.testing.assert_close(one_by_one, f(x, condition=given, prefix=0), atol=1e-4, rtol=1e-4)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[Tensor | None]:
    """Records the masks that self-attention passes to the kernel."""
    seen, kernel = [], attention.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        seen.append(attn_mask)
        return kernel(q, k, v, attn_mask=attn_mask, is_causal=is_causal)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)
    return seen


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_llama_trains_without_masks(masks: list[Tensor | None], checkpointing: bool) -> None:
    backbone = tm.Llama(4, 24, 2, 2, condition_width=8, checkpointing=checkpointing)
    model = small_model("fhtm-2", backbone=backbone)
    model.loss(data_of("fhtm-2", 2), tm.RandomStreams([0, 1]), text(3, 0)).mean().backward()
    assert masks == [None] * (4 if checkpointing else 2)


def full_mask(new: int, prefix: int, past: int) -> Tensor:
    """The mask of all rows: the past, the prefix within itself, and earlier tokens."""
    query, key = torch.arange(new)[:, None], torch.arange(-past, new)
    return (key <= query) | ((query < prefix) & (key < prefix))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("prefix", [0, 1, 2, 4, 6, 7])
def test_a_separate_call_for_the_prefix_equals_masking(prefix: int, past: int, device: str) -> None:
    """For the masks of a CPU and of a GPU, both computed on a CPU."""
    new, seen = 7, attention_mask(7, prefix, past, torch.device(device))
    q, k, v = (torch.randn(2, 2, n, 8, requires_grad=True) for n in (new, past + new, past + new))
    if seen.mask is not None:
        seen = seen._replace(mask=attention_mask(new, prefix, past).mask)  # with values
    ours = attend(q, k, v, seen)
    theirs = attend(q, k, v, AttentionMask(full_mask(new, prefix, past)))
    for one, other in zip(results(ours, q, k, v), results(theirs, q, k, v), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["ar", "artm-3", "fhtm-3", "ar-discrete"])
def test_gpus_train_without_masks(masks: list[Tensor | None], name: str) -> None:
    """The meta device simulates one."""
    loss_of(small_model(name).to("meta"), shape_of(name), (3, 8), 2).backward()
    assert masks
    assert all(mask is None for mask in masks)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_prefix_compiles_to_one_graph(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the masks of either device and checkpointing: the same output and gradients."""
    monkeypatch.setattr(
        dit, "attention_mask", lambda new, prefix, *_: attention_mask(new, prefix, 0, torch.device(device))
    )
    f, x = awake(tm.DiT(4, 24, 1, 2, timed=False, checkpointing=True)), torch.randn(2, 7, 4, requires_grad=True)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    each = (results(y, x, *f.parameters()) for y in (compiled(x, prefix=4), f(x, prefix=4)))
    for ours, theirs in zip(*each, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
