"""No condition."""

from collections.abc import Sequence
from typing import Any

from tmatch.conditioning.base import Conditioner


class Unconditional(Conditioner):
    """Ignores its inputs: the model has no condition, and guidance does not apply."""

    width = None
    null = None

    def forward(self, inputs: Sequence[Any]) -> None:
        return None

    def prompt_warnings(self, prompts: Sequence[str]) -> list[str]:
        return ["the model is unconditional and ignores the prompt."] if any(prompts) else []
