"""Captions that were encoded before."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tmatch.text import EmbeddedText


class Moves(TorchDispatchMode):
    """Counts what is converted or moved."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_captions_and_the_empty_one_among_them_are_padded_to_one_condition() -> None:
    encoder = EmbeddedText(torch.randn(1, 4).half())
    captions = [torch.randn(length, 4).half() for length in (3, 1, 5)]
    condition = encoder([*captions, encoder.empty])
    assert condition.mask.sum(1).tolist() == [3, 1, 5, 1]
    assert condition.tokens.dtype == torch.float32
    for tokens, there, caption in zip(condition.tokens, condition.mask, [*captions, encoder.empty], strict=True):
        assert torch.equal(tokens[there], caption.float())
        assert not tokens[~there].any()


def test_captions_of_several_precisions_lose_nothing() -> None:
    captions = [torch.randn(2, 4).half(), torch.randn(2, 4)]
    assert torch.equal(EmbeddedText(torch.zeros(1, 4))(captions).tokens[1], captions[1])


def test_a_batch_moves_once() -> None:
    encoder = EmbeddedText(torch.randn(1, 4).half())
    captions = [torch.randn(3, 4).half() for _ in range(20)]
    with Moves() as moves:
        encoder([*captions, encoder.empty])
    assert moves.count <= 2
