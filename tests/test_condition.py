import pytest
import torch

from tmatch import Condition


def test_cat_pads_and_masks() -> None:
    short, long = Condition.dense(torch.ones(1, 2, 4)), Condition.dense(torch.ones(2, 5, 4))
    both = Condition.cat([short, long])
    assert both.tokens.shape == (3, 5, 4)
    assert both.mask.sum(1).tolist() == [2, 5, 5]


def test_trimming_undoes_padding_and_keeps_text() -> None:
    given = Condition(torch.randn(2, 5, 4), torch.arange(5) < torch.tensor([[5], [2]]))
    trimmed = given.padded(300).trimmed()
    assert torch.equal(trimmed.tokens, given.tokens)
    assert torch.equal(trimmed.mask, given.mask)
    from_the_left = Condition(given.tokens, torch.arange(5) >= torch.tensor([[2], [3]]))
    assert torch.equal(from_the_left.trimmed().tokens, given.tokens)
    assert Condition(given.tokens, torch.zeros_like(given.mask)).trimmed().tokens.shape == (2, 1, 4)


def test_dropped_images_get_the_null_condition() -> None:
    given, null = Condition.dense(torch.ones(3, 4, 2)), Condition.dense(torch.zeros(1, 1, 2))
    mixed = given.dropped(torch.tensor([False, True, False]), null)
    assert mixed.mask.sum(1).tolist() == [4, 1, 4]
    assert mixed.tokens[1].abs().sum() == 0
    assert torch.equal(mixed.tokens[[0, 2]], given.tokens[[0, 2]])


def test_invalid_conditions_are_rejected() -> None:
    with pytest.raises(ValueError, match="shape \\(batch, length, width\\)"):
        Condition.dense(torch.ones(3, 4))
    with pytest.raises(ValueError, match="mask of a condition must be boolean"):
        Condition(torch.ones(3, 4, 2), torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="3 conditions for 4 images"):
        Condition.dense(torch.ones(3, 4, 2)).repeated(4)
