"""How many captions of `shapes` a generator satisfies, by the exact checker."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch

from tmatch.data import ShapeImages
from tmatch.data.shapes import SKILLS
from tmatch.eval.shapes import check
from tmatch.generation import Evaluations, TextToImage
from tmatch.guidance import constant
from tmatch.sampling import SamplingParams
from tmatch.tensors import Precision
from tmatch.times import Steps


def interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a share; 95% by default."""
    share = successes / trials
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Satisfied:
    """Which captions were satisfied, and what it took."""

    verdicts: torch.Tensor
    skill: list[str]
    evaluations: Evaluations
    seconds: float

    @property
    def share(self) -> float:
        """Of all captions."""
        return self.verdicts.float().mean().item()

    @property
    def interval(self) -> tuple[float, float]:
        """95%."""
        return interval(int(self.verdicts.sum()), len(self.verdicts))

    @property
    def skills(self) -> dict[str, float]:
        """The share of each skill that is there."""
        shares = {}
        for skill in SKILLS:
            of_it = self.verdicts[torch.tensor([name == skill for name in self.skill])]
            if len(of_it):
                shares[skill] = of_it.float().mean().item()
        return shares

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "prompts": len(self.verdicts),
            "captions_satisfied": round(self.share, 4),
            "interval_95": [round(bound, 4) for bound in self.interval],
            "skills": {skill: round(share, 4) for skill, share in self.skills.items()},
            "backbone_evaluations": self.evaluations.backbone,
            "head_evaluations": self.evaluations.head,
            "seconds": round(self.seconds, 2),
        }


def captions_satisfied(
    pipeline: TextToImage,
    prompts: ShapeImages,
    *,
    steps: Steps | None = None,
    guidance: float = 1.0,
    schedule: Callable[[float], float] = constant,
    params: SamplingParams = SamplingParams(),
    batch_size: int = 250,
    progress: bool = False,
    precision: Precision = "float32",
) -> Satisfied:
    """Draw an image for each caption, by seeds 0, 1, 2, ..., and check it."""
    drawn = pipeline.generate(
        prompts.captions, range(len(prompts)),
        steps=steps, guidance=guidance, schedule=schedule, params=params,
        batch_size=batch_size, progress=progress, precision=precision,
    )  # fmt: skip
    return Satisfied(check(drawn.images, prompts.captions), prompts.skill, drawn.evaluations, drawn.seconds)
