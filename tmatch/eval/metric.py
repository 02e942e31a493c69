"""The contract of metrics."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from tmatch.data import CaptionedImages


class Metric(Protocol):
    """Scores generated images (n, 3, height, width) in [0, 1], one per prompt, against an optional reference set.

    It returns a JSON-able dictionary and raises a ValueError if it does not apply to the images or prompts.
    """

    def __call__(
        self, images: Tensor, prompts: Sequence[str], reference: CaptionedImages | None, /
    ) -> dict[str, Any]: ...
