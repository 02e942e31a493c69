"""The paper's runs, and a ladder of smaller ones: on the shards that `tmatch prepare` makes, for one GPU or many."""

from collections.abc import Callable
from typing import Any

from tmatch.runs.base import BackboneSettings, HeadSettings, SamplingSettings
from tmatch.runs.shards import ShardRecipe
from tmatch.train import TrainConfig
from tmatch.variants import VARIANTS

_REPORTED = SamplingSettings(steps=32, head_steps=64, guidance=6.5)
_OWN_STEPS = SamplingSettings(steps=None, head_steps=64, guidance=6.5)
_MASKED = SamplingSettings(steps=None, head_steps=64, guidance=6.5, schedule="rising")
_MASKGIT = SamplingSettings(steps=None, guidance=6.5, schedule="rising", order="confidence", confidence_temperature=4.5)
_IN_TURN = (
    "ar", "artm-2", "artm-3", "artm-3-uniform", "artm-3-dependent", "fhtm-2", "fhtm-3", "fhtm-3-uniform",
    "fhtm-3-dependent",
)  # fmt: skip
_PAPER: dict[str, SamplingSettings] = {
    "fm": SamplingSettings(steps=256, guidance=6.5),
    "dtm": _REPORTED,
    "dtm-mean": _REPORTED,
    **dict.fromkeys(_IN_TURN, _OWN_STEPS),
    **dict.fromkeys(("mar", "mar-fluid"), _MASKED),
    "martm-2": _MASKED.model_copy(update={"iterations": 128}),
    "martm-3": _MASKED.model_copy(update={"iterations": 85}),
    "ar-discrete": _OWN_STEPS,
    "mar-discrete": _MASKGIT,
}
_DRAWS = dict.fromkeys(("mar", "mar-fluid", "martm-2", "martm-3"), 4)
"""Pairs of (s, noise) a token in training, where the head sees more than one: as MAR is published."""
_STEPS = dict.fromkeys(("artm-3-dependent", "fhtm-3-dependent"), 100_000)
"""Of training, where they are fewer: the ablation of Section 4."""
_LADDER = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "xl": (1152, 28, 16)}
"""Width, depth and heads: the sizes that DiT made common."""
_HEADS = {"s": (512, 3), "b": (768, 3), "l": (1024, 6), "xl": (1024, 6)}


def _paper(variant: str, about: str, **settings: Any) -> Callable[[], ShardRecipe]:  # noqa: ANN401
    """500K steps of 2048 images at a constant 1e-4, with 15% of the captions dropped; the ablation took 100K.

    docs/paper_map.md says what the paper leaves open and we chose.
    """

    def recipe() -> ShardRecipe:
        train = TrainConfig(
            steps=_STEPS.get(variant, 500_000), batch=2048, learning_rate=1e-4, warmup=2000, ema=0.9999,
            precision="bfloat16", parallel="shard", checkpoint_every=5000, validate_every=5000,
            preview_every=10_000, seed=1,
        )  # fmt: skip
        backbone = BackboneSettings(width=2048, depth=24, heads=16, checkpointing=True)
        defaults: dict[str, Any] = {
            "backbone": backbone, "head": HeadSettings(width=1024, depth=6, samples_per_token=_DRAWS.get(variant, 1)),
            "patch": (1, 1) if VARIANTS[variant].discrete else (2, 2),
        }  # fmt: skip
        return ShardRecipe(
            train=train, variant=variant, sampling=_PAPER[variant], drop=0.15, workers=4, **{**defaults, **settings}
        )

    recipe.__doc__ = about
    return recipe


def _rung(variant: str, size: str) -> Callable[[], ShardRecipe]:
    """A smaller one, for a GPU or a few."""
    (width, depth, heads), (head_width, head_depth) = _LADDER[size], _HEADS[size]

    def recipe() -> ShardRecipe:
        train = TrainConfig(
            steps=400_000, batch=256, learning_rate=1e-4, warmup=2000, ema=0.9999, precision="bfloat16",
            checkpoint_every=2500, validate_every=2500, preview_every=10_000, seed=1,
        )  # fmt: skip
        return ShardRecipe(
            train=train, variant=variant, sampling=SamplingSettings(steps=32, head_steps=4, guidance=4.0), workers=4,
            backbone=BackboneSettings(width=width, depth=depth, heads=heads),
            head=HeadSettings(width=head_width, depth=head_depth),
        )  # fmt: skip

    recipe.__doc__ = f"'{variant}' on shards, a DiT of size {size.upper()}: {depth} blocks, {width} wide."
    return recipe


_LLAMA = BackboneSettings(kind="llama", width=2048, depth=34, heads=16, checkpointing=True)
PAPER_RECIPES: dict[str, Callable[[], ShardRecipe]] = {
    **{f"paper-{name}": _paper(name, f"The paper's 1.7B DiT on shards: '{name}'.") for name in _PAPER},
    "paper-fhtm-3-llama": _paper("fhtm-3", "The paper's 1.7B Llama on shards: 'fhtm-3'.", backbone=_LLAMA),
}
"""At 256 x 256 with the latents of SDXL's autoencoder and Flan-UL2's embeddings, they have the paper's sizes.

Discrete ones read codes instead, of 16 x 16 pixels each: 256 tokens too.
"""
LADDER_RECIPES = {f"{name}-{size}": _rung(name, size) for name in ("fm", "dtm") for size in _LADDER}
