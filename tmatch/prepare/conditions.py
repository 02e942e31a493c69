"""What the latents of a chunk are stored with: the tokens of captions, labels, or nothing."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tmatch.conditioning.transformers import PretrainedText
from tmatch.data.manifest import ShardSettings
from tmatch.data.shards import CaptionedSamples, LabelledSamples, Samples
from tmatch.hub import ENCODER_DTYPES


class ConditionedRow(NamedTuple):
    """The number of a row, and its captions, or the index of its class, or neither."""

    row: int
    captions: tuple[str, ...]
    label: int | None


class Conditions:
    """Nothing but latents is stored; subclasses store more."""

    def samples(self, latents: Tensor, rows: Sequence[ConditionedRow]) -> tuple[Samples, int]:
        """The samples of some rows, and the number of truncated captions."""
        return Samples(latents, _numbers(rows)), 0

    def null(self) -> Tensor | None:
        """The tokens of the empty caption, where captions are stored."""
        return None


class LabelConditions(Conditions):
    """Labels as they are."""

    def samples(self, latents: Tensor, rows: Sequence[ConditionedRow]) -> tuple[Samples, int]:
        labels = [row.label for row in rows if row.label is not None]
        return LabelledSamples(latents, _numbers(rows), torch.tensor(labels)), 0


class CaptionConditions(Conditions):
    """The tokens of every caption, by a text encoder."""

    def __init__(self, text: PretrainedText, settings: ShardSettings) -> None:
        self.text = text
        self.dtype = settings.dtype
        self.batch_size = settings.batch_size

    def samples(self, latents: Tensor, rows: Sequence[ConditionedRow]) -> tuple[Samples, int]:
        tokens, longer = self._encoded([caption for row in rows for caption in row.captions])
        rest = iter(tokens)
        conditions = [[next(rest) for _ in row.captions] for row in rows]
        return CaptionedSamples.join(latents, conditions, _numbers(rows).tolist()), longer

    def null(self) -> Tensor:
        null = self.text([self.text.null])
        return null.tokens[0][null.mask[0]].to(ENCODER_DTYPES[self.dtype]).cpu()

    def _encoded(self, captions: Sequence[str]) -> tuple[list[Tensor], int]:
        """The tokens of each caption, and how many are truncated; those of similar length are encoded together."""
        lengths, tokens = self.text.lengths(captions), dict[int, Tensor]()
        order = sorted(range(len(captions)), key=lengths.__getitem__)
        for part in (order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)):
            condition = self.text([captions[k] for k in part])
            encoded, mask = self._in_dtype(condition.tokens), condition.mask.cpu()
            tokens |= {k: row[valid] for k, row, valid in zip(part, encoded, mask, strict=True)}
        return [tokens[k] for k in range(len(captions))], sum(length > self.text.max_length for length in lengths)

    def _in_dtype(self, tokens: Tensor) -> Tensor:
        """Tokens in the dtype of the shards; raises if the text encoder or that dtype overflows."""
        converted = tokens.to(ENCODER_DTYPES[self.dtype]).cpu()
        if not converted.isfinite().all():
            raise ValueError(
                f"{self.text.name} overflows in {self.text.precision} or {self.dtype}; set --text-precision float32 "
                "and --dtype float32 and use a new folder, or use another text encoder."
            )
        return converted


def conditions_for(settings: ShardSettings, text: PretrainedText | None) -> Conditions:
    """What shards with these settings hold beside latents."""
    if text is not None:
        return CaptionConditions(text, settings)
    return Conditions() if settings.classes is None else LabelConditions()


def _numbers(rows: Sequence[ConditionedRow]) -> Tensor:
    return torch.tensor([row.row for row in rows])
