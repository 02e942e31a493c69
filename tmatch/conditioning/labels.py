"""Class labels, or no condition."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tmatch.condition import Condition
from tmatch.conditioning.base import Conditioner, listed
from tmatch.config import did_you_mean
from tmatch.tensors import positive_int


class Unconditional(Conditioner):
    """Ignores its inputs: the model has no condition, and guidance does not apply."""

    width = None
    null = None

    def forward(self, inputs: Sequence[Any]) -> None:
        return None


class ClassLabels(Conditioner):
    """c = E[label]: one learned token per class, and one more for the null class.

    A label is the index or the name of a class; `classes` are the names, or the number of classes.
    """

    null = None

    def __init__(self, classes: Sequence[str] | int, width: int = 128) -> None:
        super().__init__()
        count = positive_int("The number of classes", classes if isinstance(classes, int) else len(classes))
        self.classes = tuple(map(str, range(count)) if isinstance(classes, int) else classes)
        self._index = {name: index for index, name in enumerate(self.classes)}
        if len(self._index) != len(self.classes):
            raise ValueError("Class names must be unique.")
        self.width: int = width
        self.table = nn.Embedding(len(self.classes) + 1, width)

    def forward(self, inputs: Sequence[int | str | None]) -> Condition:
        null = len(self.classes)
        rows = [null if label is None else self.index(label) for label in inputs]
        return Condition.dense(self.table(torch.tensor(rows, device=self.table.weight.device))[:, None])

    def index(self, label: int | str) -> int:
        """The index of a class from its name or index; an unknown class is an error that lists those there are."""
        try:
            if isinstance(label, str):  # on a command line an index is a string, too
                index = self._index[label] if label in self._index else int(label)
            else:
                index = operator.index(label)
        except (TypeError, ValueError):
            index = -1
        if not 0 <= index < len(self.classes):
            raise ValueError(
                f"There is no class {label!r}{did_you_mean(str(label), self.classes)}; pass an integer from 0 to "
                f"{len(self.classes) - 1} or one of: {listed(self.classes)}."
            )
        return index
