"""The share of `shapes` captions that images satisfy, by the exact checker."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from tmatch.codec import Codec
from tmatch.data import CaptionedImages
from tmatch.data.shapes import SKILLS
from tmatch.eval.shapes import check, skill_of


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a proportion; 95% by default."""
    share = successes / trials
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def captions(
    images: Tensor, prompts: Sequence[str], reference: CaptionedImages | None = None, codec: Codec | None = None
) -> dict[str, Any]:
    """The share of captions satisfied, its 95% interval, and the share for each skill."""
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise ValueError("The metric captions checks prompts; for classes or no condition, use energy or frechet.")
    satisfied = check(images, prompts).tolist()
    by_skill: dict[str, list[bool]] = {skill: [] for skill in SKILLS}
    for prompt, verdict in zip(prompts, satisfied, strict=True):
        by_skill[skill_of(prompt)].append(verdict)
    return {
        "captions_satisfied": round(sum(satisfied) / len(satisfied), 4),
        "interval_95": [round(bound, 4) for bound in wilson_interval(sum(satisfied), len(satisfied))],
        "skills": {skill: round(sum(found) / len(found), 4) for skill, found in by_skill.items() if found},
    }
