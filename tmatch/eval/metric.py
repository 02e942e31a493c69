"""The contract of metrics."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from tmatch.codec import Codec
from tmatch.data import CaptionedImages


class Metric(Protocol):
    """Scores generated images (n, 3, height, width) in [0, 1], one per prompt, against an optional reference set.

    It returns a JSON-able dictionary, whose first value is its score: one number, and larger is better unless the row
    is in LOWER_IS_BETTER. It raises a ValueError if it does not apply to the images or prompts. `codec` is the model's;
    the reference is loaded only by a metric that reads it.
    """

    def __call__(
        self, images: Tensor, prompts: Sequence[str], reference: CaptionedImages | None, codec: Codec, /
    ) -> dict[str, Any]: ...


def score(result: Mapping[str, Any]) -> float:
    """The score in the result of a metric; in that of `evaluate`, the score of the first metric."""
    return float(next(iter(result.values())))
