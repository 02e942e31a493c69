"""What to generate: prompts, classes, or nothing, as the conditioner of a model reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, Literal

from tmatch.conditioning import ClassLabels, Conditioner
from tmatch.conditioning.base import require_text

InputKind = Literal["prompt", "class", "unconditional"]


@dataclass(frozen=True)
class OptionNames:
    """How an error refers to the options of a caller."""

    labels: str
    unconditional: str
    negative: str


COMMAND_LINE = OptionNames("--class", "--unconditional", "--negative")
PYTHON = OptionNames("class_labels", "unconditional=True", "negative_prompt")


@dataclass(frozen=True)
class Inputs:
    """What a user asks for; at most one of `prompts`, `labels` and `unconditional`, and something to guide away from.

    A model that was trained on class labels also takes them as prompts.
    """

    prompts: Sequence[Any] = ()
    labels: Sequence[Any] = ()
    unconditional: bool = False
    negative: Any = ""

    def resolve(self, encoder: Conditioner, names: OptionNames) -> tuple[InputKind, Sequence[Any]]:
        """The kind of the inputs and the inputs: prompts, names of classes, or [None]; an error says what is wrong."""
        if sum(map(bool, (self.prompts, self.labels, self.unconditional))) > 1:
            raise ValueError(f"Give only one of: a prompt, {names.labels}, {names.unconditional}.")
        require_text([x for x in (*self.prompts, *self.labels, self.negative) if isinstance(x, str)])
        if self.unconditional or encoder.width is None:
            self._require_nothing(names)
            return "unconditional", [None]
        if isinstance(encoder, ClassLabels):
            if not (labels := self.labels or self.prompts):
                raise ValueError(f"Give {names.labels}, such as {encoder.classes[0]!r}, or {names.unconditional}.")
            return "class", [encoder.classes[encoder.index(label)] for label in labels]
        if self.labels:
            raise ValueError(f"{names.labels} needs a model that was trained on class labels; this one reads prompts.")
        if not self.prompts:
            raise ValueError(f"Give a prompt, such as 'a red circle and a blue square', or {names.unconditional}.")
        require_text(self.prompts)
        return "prompt", self.prompts

    def _require_nothing(self, names: OptionNames) -> None:
        if self.prompts or self.labels:
            raise ValueError("This model is unconditional: leave out the prompt or class.")
        if self.negative not in ("", None):
            raise ValueError(f"{names.negative} has no effect on an unconditional generation; leave it out.")


def example(encoder: Conditioner) -> tuple[str, str]:
    """What to generate an image from, on the command line and as arguments of a pipeline."""
    if encoder.width is None:
        return "", ""
    if isinstance(encoder, ClassLabels):
        return f"--class {quote(encoder.classes[0])}", f"class_labels={encoder.classes[0]!r}"
    return "'a red circle'", '"a red circle"'
