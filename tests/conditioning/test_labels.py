"""Class labels, and no condition at all."""

import pytest
import torch

import tmatch as tm
from tmatch.codec import Codec
from tmatch.conditioning import CONDITIONERS, ClassLabels, Conditioner, Unconditional, WordEncoder
from tmatch.data import InMemory
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig
from tmatch.train import Captioned, GeneratorTask

CLASSES = ("cat", "dog", "fox")


def test_names_and_integers_agree_and_each_class_has_one_token() -> None:
    f = ClassLabels(CLASSES, width=8)
    by_name, by_index = f(["fox", "cat"]), f([torch.tensor(2), "0"])
    assert by_name.tokens.shape == (2, 1, 8)
    assert torch.equal(by_name.tokens, by_index.tokens)
    assert torch.equal(ClassLabels(3, width=8)(["0", "2"]).mask, torch.ones(2, 1, dtype=torch.bool))


def test_the_null_class_is_a_row_of_its_own_that_no_label_changes() -> None:
    f = ClassLabels(CLASSES, width=8)
    null = f([f.null]).tokens
    assert all(not torch.equal(null[0], one) for one in f(CLASSES).tokens)
    f(CLASSES).tokens.sum().backward()
    assert torch.equal(f.table.weight.grad, torch.cat((torch.ones(3, 8), torch.zeros(1, 8))))
    torch.optim.SGD(f.parameters(), 0.1).step()
    assert torch.equal(f([f.null]).tokens, null)


@pytest.mark.parametrize("label", [3, -1, "cow", 1.5, "3"])
def test_an_unknown_label_is_rejected(label: object) -> None:
    with pytest.raises(ValueError, match="pass an integer from 0 to 2 or one of: cat, dog, fox"):
        ClassLabels(CLASSES)([label])


@pytest.mark.parametrize(
    ("conditioner", "inputs"), [(ClassLabels(CLASSES, 8), [0, "fox"]), (Unconditional(), [None, None])]
)
def test_a_model_trains_and_generates_without_text(conditioner: Conditioner, inputs: list) -> None:
    model = tm.build("fm", tm.DiT(12, 16, 1, 2, condition_width=conditioner.width), 12)
    task = GeneratorTask(model, conditioner, Captioned(InMemory(torch.randn(2, 2, 2, 12)), inputs))
    task.loss(0, 2, 0, 1).backward()
    assert all(p.grad is not None for p in model.parameters())
    pipeline = TextToImage(model, conditioner, Codec(tm.Patchify((2, 2))), (2, 2, 12))
    assert pipeline.generate(inputs, range(2), SamplingConfig(steps=2)).images.shape == (2, 3, 4, 4)


def test_an_unconditional_model_ignores_its_inputs() -> None:
    f = Unconditional()
    assert f([f.null, "anything"]) is None
    assert f.prompt_warnings([""]) == []
    assert f.prompt_warnings(["a cat"]) == ["the model is unconditional and ignores the prompt."]


def test_every_conditioner_that_a_run_can_name_declares_its_null_input() -> None:
    built = {
        "words": WordEncoder(["a"], width=8, heads=2),
        "labels": ClassLabels(2, width=8),
        "none": Unconditional(),
        "embedded": CONDITIONERS["embedded"](torch.zeros(1, 8)),
    }
    assert built.keys() == CONDITIONERS.keys()
    for name, f in built.items():
        condition = f([f.null])
        assert (condition is None) == (f.width is None) == (name == "none")
        assert condition is None or condition.tokens.shape == (1, 1, f.width)
