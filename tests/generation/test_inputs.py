"""What a model is asked for."""

from typing import Any

import pytest

from tmatch.conditioning import ClassLabels, Conditioner, Unconditional, WordEncoder
from tmatch.generation.inputs import COMMAND_LINE, PYTHON, Inputs, example

WORDS, LABELS, NOTHING = WordEncoder(["a", "cat"], 8, heads=2), ClassLabels(["cat", "ice cream"], 8), Unconditional()


@pytest.mark.parametrize(
    ("encoder", "asked", "resolved"),
    [
        (WORDS, {"prompts": ["a cat", "a"], "negative": "a"}, ("prompt", ["a cat", "a"])),
        (WORDS, {"unconditional": True}, ("unconditional", [None])),
        (LABELS, {"labels": [0, "1", "cat"], "negative": 0}, ("class", ["cat", "ice cream", "cat"])),
        (LABELS, {"prompts": ["ice cream", 0]}, ("class", ["ice cream", "cat"])),
        (LABELS, {"unconditional": True}, ("unconditional", [None])),
        (NOTHING, {}, ("unconditional", [None])),
        (NOTHING, {"unconditional": True, "negative": None}, ("unconditional", [None])),
    ],
)
def test_prompts_classes_or_nothing(encoder: Conditioner, asked: dict[str, Any], resolved: object) -> None:
    assert Inputs(**asked).resolve(encoder, PYTHON) == resolved


@pytest.mark.parametrize(
    ("encoder", "asked", "named"),
    [
        (WORDS, {}, "Give a prompt"),
        (WORDS, {"labels": ["cat"]}, "--class"),
        (WORDS, {"prompts": [3]}, "3"),
        (WORDS, {"prompts": [None]}, "None"),
        (WORDS, {"prompts": ["a"], "labels": ["cat"]}, "--class"),
        (WORDS, {"prompts": ["a"], "unconditional": True}, "--unconditional"),
        (WORDS, {"unconditional": True, "negative": "a"}, "--negative"),
        (LABELS, {}, "--class"),
        (LABELS, {"labels": ["cat"], "unconditional": True}, "--unconditional"),
        (LABELS, {"labels": [2]}, "no class 2"),
        (LABELS, {"labels": [None]}, "no class None"),
        (LABELS, {"prompts": ["ice-cream"]}, "did you mean 'ice cream'"),
        (LABELS, {"unconditional": True, "negative": 0}, "--negative"),
        (NOTHING, {"prompts": ["a cat"]}, "unconditional"),
        (NOTHING, {"labels": [0]}, "unconditional"),
        (NOTHING, {"negative": "a"}, "--negative"),
    ],
)
def test_what_a_model_does_not_read_is_rejected(encoder: Conditioner, asked: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Inputs(**asked).resolve(encoder, COMMAND_LINE)


@pytest.mark.parametrize("encoder", [WORDS, LABELS, NOTHING])
def test_the_example_of_a_model_is_what_it_reads(encoder: Conditioner) -> None:
    def arguments(prompt: str = "", class_labels: str = "") -> Inputs:
        return Inputs(prompts=[prompt] if prompt else [], labels=[class_labels] if class_labels else [])

    words, code = example(encoder)
    kind, given = eval(f"arguments({code})", {"arguments": arguments}).resolve(encoder, PYTHON)
    assert words == {"prompt": f"'{given[0]}'", "class": f"--class {given[0]}", "unconditional": ""}[kind]
