"""The paper's models, and smaller sizes: on data shards, for one GPU or many."""

from collections.abc import Callable
from typing import Any

from tmatch.datasets import ShardsData
from tmatch.generation.config import SamplingConfig
from tmatch.runs import BackboneConfig, RunConfig
from tmatch.train import TrainConfig
from tmatch.variants import VARIANTS, HeadConfig

_REPORTED = SamplingConfig(steps=32, head_steps=64, guidance=6.5)
_GRID_STEPS = SamplingConfig(steps=None, head_steps=64, guidance=6.5)
_MASKED = SamplingConfig(steps=None, head_steps=64, guidance=6.5, guidance_schedule="rising")
_PAPER_MASKGIT = SamplingConfig(
    steps=None, guidance=6.5, guidance_schedule="rising", order="confidence", confidence_temperature=4.5
)
_IN_TURN = (
    "ar", "artm-2", "artm-3", "artm-3-uniform", "artm-3-dependent", "fhtm-2", "fhtm-3", "fhtm-3-uniform",
    "fhtm-3-dependent",
)  # fmt: skip
_PAPER: dict[str, SamplingConfig] = {
    "fm": SamplingConfig(steps=256, guidance=6.5),
    "dtm": _REPORTED,
    "dtm-32": _GRID_STEPS,
    "dtm-mean": _REPORTED,
    **dict.fromkeys(_IN_TURN, _GRID_STEPS),
    **dict.fromkeys(("mar", "mar-fluid"), _MASKED),
    "martm-2": _MASKED.model_copy(update={"iterations": 128}),
    "martm-3": _MASKED.model_copy(update={"iterations": 85}),
    "ar-discrete": SamplingConfig(steps=None, guidance=6.5),
    "mar-discrete": _PAPER_MASKGIT,
}
_SAMPLES_PER_TOKEN = dict.fromkeys(("mar", "mar-fluid", "martm-2", "martm-3"), 4)
"""As MAR is published."""
_STEPS = dict.fromkeys(("artm-3-dependent", "fhtm-3-dependent"), 100_000)
"""Training steps of the ablation in Section 4."""
DIT_SIZES = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "xl": (1152, 28, 16)}
"""Width, depth and heads, as DiT publishes them (facebookresearch/DiT, models.py)."""
HEAD_SIZES = {"s": (512, 3), "b": (768, 3), "l": (1024, 6), "xl": (1024, 6)}
"""Width and depth of the head for each; the last two are the paper's."""


def _paper(variant: str, description: str, **settings: Any) -> Callable[[], RunConfig]:  # noqa: ANN401
    """500K steps of 2048 images at a constant 1e-4, with 15% of the captions dropped; the ablation took 100K.

    docs/paper_map.md says what the paper leaves open and we chose.
    """

    def recipe() -> RunConfig:
        train = TrainConfig(
            steps=_STEPS.get(variant, 500_000), batch_size=2048, learning_rate=1e-4, warmup=2000, ema_decay=0.9999,
            precision="bfloat16", parallel="fsdp", checkpoint_every=5000, validate_every=5000,
            preview_every=10_000, seed=1,
        )  # fmt: skip
        backbone = BackboneConfig(width=2048, depth=24, heads=16, checkpointing=True)
        defaults: dict[str, Any] = {
            "backbone": backbone,
            "head": HeadConfig(width=1024, samples_per_token=_SAMPLES_PER_TOKEN.get(variant, 1)),
            "patch": (1, 1) if VARIANTS[variant].discrete else (2, 2), "sampling": _PAPER[variant],
        }  # fmt: skip
        data = ShardsData(workers=4)
        return RunConfig(train=train, variant=variant, data=data, caption_dropout=0.15, **{**defaults, **settings})

    recipe.__doc__ = description
    return recipe


def _sized(variant: str, size: str) -> Callable[[], RunConfig]:
    """A smaller model, for one or a few GPUs."""
    (width, depth, heads), (head_width, head_depth) = DIT_SIZES[size], HEAD_SIZES[size]

    def recipe() -> RunConfig:
        train = TrainConfig(
            steps=400_000, batch_size=256, learning_rate=1e-4, warmup=2000, ema_decay=0.9999, precision="bfloat16",
            checkpoint_every=2500, validate_every=2500, preview_every=10_000, seed=1,
        )  # fmt: skip
        return RunConfig(
            train=train, variant=variant, data=ShardsData(workers=4), sampling=SamplingConfig(steps=32, guidance=4.0),
            backbone=BackboneConfig(width=width, depth=depth, heads=heads),
            head=HeadConfig(width=head_width, depth=head_depth),
        )  # fmt: skip

    recipe.__doc__ = f"{variant.upper()} on data shards with a DiT-{size.upper()}: {depth} blocks, width {width}."
    return recipe


_PAPER_LLAMA = BackboneConfig(kind="llama", width=2048, depth=34, heads=16, checkpointing=True)
PAPER_RECIPES: dict[str, Callable[[], RunConfig]] = {
    **{f"paper-{name}": _paper(name, f"The paper's 1.7B DiT: '{name}'.") for name in _PAPER},
    "paper-fm-restart": _paper(
        "fm", "paper-fm with the restart sampler: 2,400 evaluations.",
        sampling=SamplingConfig(steps=1000, guidance=6.5, sampler="restart"),
    ),
    "paper-fhtm-3-llama": _paper("fhtm-3", "The paper's 1.7B Llama: 'fhtm-3'.", backbone=_PAPER_LLAMA),
}  # fmt: skip
"""The paper's sizes need images of 256 x 256, latents of SDXL's autoencoder and embeddings of Flan-UL2.

Discrete variants read one code for every 16 x 16 pixels: 256 tokens too.
"""
SIZE_RECIPES = {f"{name}-{size}": _sized(name, size) for name in ("fm", "dtm") for size in DIT_SIZES}
