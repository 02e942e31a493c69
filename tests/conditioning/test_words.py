import pytest
import torch

from tmatch.conditioning import WordEncoder


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder(["a", "red", "blue", "circle", "square", "and"], width=16, depth=2, heads=2)


def test_a_condition_does_not_depend_on_its_batch(encoder: WordEncoder) -> None:
    together, alone = encoder(["a circle", "a red circle and a blue square"]), encoder(["a circle"])
    assert together.mask.sum(1).tolist() == [3, 8]
    torch.testing.assert_close(together.tokens[0, :3], alone.tokens[0])


def test_the_order_of_words_matters(encoder: WordEncoder) -> None:
    one, other = encoder(["a red circle and a blue square", "a blue circle and a red square"]).tokens
    assert not torch.allclose(one[-1], other[-1], atol=1e-3)


def test_the_empty_caption_is_the_null_condition(encoder: WordEncoder) -> None:
    null = encoder([encoder.null]).tokens
    assert null.shape == (1, 1, 16)
    torch.testing.assert_close(encoder(["", "a circle"]).tokens[0, :1], null[0])


def test_unknown_words_are_reported_and_skipped(encoder: WordEncoder) -> None:
    assert encoder.unknown("A red zebra and a Gnu") == ["zebra", "gnu"]
    assert len(encoder.prompt_warnings(["a zebra", "a " * 17])) == 2
    torch.testing.assert_close(encoder(["a zebra red gnu circle"]).tokens, encoder(["a red circle"]).tokens)
    assert not torch.allclose(encoder(["a red circle"]).tokens, encoder(["a blue circle"]).tokens, atol=1e-3)


def test_as_many_words_are_read_as_promised() -> None:
    encoder = WordEncoder(["a", "b"], width=16, heads=2, max_length=4)
    read = encoder(["a a a a", "a a a b", "a a a a b"])
    assert read.mask.sum(1).tolist() == [5, 5, 5], "after the start token"
    torch.testing.assert_close(read.tokens[0], read.tokens[2])
    assert not torch.allclose(read.tokens[0, -1], read.tokens[1, -1], atol=1e-3)


def test_punctuation_and_capitals_change_nothing(encoder: WordEncoder) -> None:
    marked, plain = "A (red) circle, and a blue square!", "a red circle and a blue square"
    torch.testing.assert_close(encoder([marked]).tokens, encoder([plain]).tokens)


def test_every_parameter_gets_a_gradient(encoder: WordEncoder) -> None:
    encoder(["a red circle and a blue square", "zebra"]).tokens.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_a_bad_vocabulary_is_rejected() -> None:
    for words in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="unique words"):
            WordEncoder(words)
