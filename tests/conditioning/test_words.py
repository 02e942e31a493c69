import pytest
import torch

from tmatch.conditioning import WordEncoder


def encoder() -> WordEncoder:
    return WordEncoder(["a", "red", "blue", "circle", "square", "and"], width=16, depth=2, heads=2)


def test_a_caption_does_not_depend_on_its_neighbours() -> None:
    f = encoder()
    together, alone = f(["a circle", "a red circle and a blue square"]), f(["a circle"])
    assert together.mask.sum(1).tolist() == [3, 8]
    torch.testing.assert_close(together.tokens[0, :3], alone.tokens[0])


def test_the_order_of_words_matters() -> None:
    one, other = encoder()(["a red circle and a blue square", "a blue circle and a red square"]).tokens
    assert not torch.allclose(one[-1], other[-1], atol=1e-3)


def test_the_empty_caption_is_the_null_condition() -> None:
    f = encoder()
    assert f.null().tokens.shape == (1, 1, 16)
    torch.testing.assert_close(f(["", "a circle"]).tokens[0, :1], f.null().tokens[0])


def test_unknown_words_are_named_and_left_out() -> None:
    f = encoder()
    assert f.unknown("A red zebra and a Gnu") == ["zebra", "gnu"]
    torch.testing.assert_close(f(["a zebra red gnu circle"]).tokens, f(["a red circle"]).tokens)
    assert not torch.allclose(f(["a red circle"]).tokens, f(["a blue circle"]).tokens, atol=1e-3)


def test_marks_and_capitals_change_nothing() -> None:
    f = encoder()
    torch.testing.assert_close(
        f(["A (red) circle, and a blue square!"]).tokens, f(["a red circle and a blue square"]).tokens
    )


def test_every_parameter_gets_a_gradient() -> None:
    f = encoder()
    f(["a red circle and a blue square", "zebra"]).tokens.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in f.parameters())


def test_a_bad_vocabulary_is_refused() -> None:
    for words in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="a list of different words"):
            WordEncoder(words)


def test_remarks_are_short_whatever_was_asked() -> None:
    f = WordEncoder([f"word{k}" for k in range(500)], width=16, heads=2, longest=4)
    unknown, long = f.prompt_warnings([" ".join(f"no{k}" for k in range(100)), "no"])
    assert "'no', 'no0', 'no1', 'no10'," in unknown
    assert " and 71 more and draws without; it knows: word0, word1," in unknown
    assert unknown.endswith("word29 and 470 more.")
    assert long.startswith("the model reads the first 4 words of a prompt: 'no0 no1 no2")
    assert long.endswith(" no12 no...'.")
