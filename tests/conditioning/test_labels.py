"""Class labels, and no condition at all."""

import pytest
import torch
from laws import SHAPE, awake, shape_of, small_model, steps_of

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


def test_a_dropped_label_changes_neither_loss_nor_gradient() -> None:
    """With every label dropped, only the null class learns, whatever the labels are."""
    model, states, losses = small_model("dtm"), torch.randn(4, *SHAPE), []
    f = awake(ClassLabels(CLASSES, 8))
    for labels in ([0, 1, 2, 0], [2, 2, 0, 1]):
        task = GeneratorTask(model, f, Captioned(InMemory(states), labels), caption_dropout=1.0)
        losses.append(task.loss(0, 4, 0, 1))
        losses[-1].backward()
    assert torch.equal(losses[0], losses[1])
    assert not f.table.weight.grad[:3].any()
    assert f.table.weight.grad[3].any()


@pytest.mark.parametrize("name", tm.VARIANTS)
def test_guidance_of_scale_0_samples_from_the_null_class(name: str) -> None:
    """And no label changes it."""
    model, f = small_model(name), awake(ClassLabels(CLASSES, 8))
    null = f([f.null])
    how = {"model": model, "shape": shape_of(name), "seeds": range(2), "steps": None if steps_of(name) is None else 3}
    params = tm.SamplingParams(guidance=tm.ClassifierFreeGuidance(null, scale=0.0))
    with torch.no_grad():
        one, other = (tm.generate(**how, condition=f(labels), params=params).x for labels in (["cat", 1], [2, "cat"]))
        unconditional, conditional = (tm.generate(**how, condition=c).x for c in (null, f(["cat", "dog"])))
    assert torch.equal(one, other)
    torch.testing.assert_close(one, unconditional, atol=1e-5, rtol=1e-5)
    assert not torch.equal(conditional, unconditional)


def test_an_image_without_a_label_is_one_of_the_null_class() -> None:
    f = awake(ClassLabels(CLASSES, 8))
    model = awake(tm.build("fm", tm.DiT(12, 16, 1, 2, condition_width=8), 12))
    pipeline = TextToImage(model, f, Codec(tm.Patchify((2, 2))), (2, 2, 12))
    zero, plain = SamplingConfig(steps=2, guidance=0.0), SamplingConfig(steps=2, guidance=1.0)
    nothing = pipeline.generate([None, None], range(2), plain).images
    assert torch.equal(pipeline.generate(["cat", 2], range(2), zero).images, nothing)
    with torch.no_grad():
        f.table.weight[:3] += 1
    assert torch.equal(pipeline.generate([None, None], range(2), plain).images, nothing)
    assert not torch.equal(pipeline.generate(["cat", 2], range(2), plain).images, nothing)


def test_an_unconditional_model_ignores_its_inputs() -> None:
    f = Unconditional()
    assert f([f.null, "anything"]) is None


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
