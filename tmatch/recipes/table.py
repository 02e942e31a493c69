"""The recipes, by name."""

from collections.abc import Callable
from typing import Any

from tmatch.recipes.paper import LADDER_RECIPES, PAPER_RECIPES
from tmatch.runs.autoencoder import AutoencoderRecipe, shapes_autoencoder, shapes_codes_autoencoder
from tmatch.runs.base import BackboneSettings, HeadSettings, SamplingSettings
from tmatch.runs.finetune import StartSettings
from tmatch.runs.generator import GeneratorRecipe
from tmatch.runs.settings import FolderData, ShapesData
from tmatch.runs.shards import ShardRecipe
from tmatch.train import TrainConfig

Recipe = AutoencoderRecipe[Any] | GeneratorRecipe[Any] | ShardRecipe


def _shapes_training(steps: int) -> TrainConfig:
    """The same descent for every generator of `shapes`; the number of steps makes their training seconds equal."""
    return TrainConfig(
        steps=steps, batch_size=64, learning_rate=2e-3, betas=(0.9, 0.95), weight_decay=0.01, warmup=200, cooldown=0.3,
        ema_decay=0.999, validate_every=1000, preview_every=1000, seed=1,
    )  # fmt: skip


def _shapes(variant: str, steps: int, about: str, **settings: Any) -> Callable[[], GeneratorRecipe[ShapesData]]:  # noqa: ANN401
    """A recipe of one variant on the latents, or codes, of `shapes`."""

    def recipe() -> GeneratorRecipe[ShapesData]:
        return GeneratorRecipe[ShapesData](
            train=_shapes_training(steps), variant=variant, data=ShapesData(), **settings
        )

    recipe.__doc__ = about
    return recipe


_OWN_STEPS: dict[str, Any] = {"sampling": SamplingSettings(steps=None, guidance=3.0)}
_CODES: dict[str, Any] = {**_OWN_STEPS, "autoencoder": "shapes-codes", "patch": (1, 1)}
_MASKGIT: dict[str, Any] = {**_CODES, "sampling": SamplingSettings(steps=None, order="confidence")}
_LLAMA: dict[str, Any] = {**_OWN_STEPS, "backbone": BackboneSettings(kind="llama", depth=5)}


def folder_autoencoder() -> AutoencoderRecipe[FolderData]:
    """An autoencoder of your own images: set data.folder."""
    return AutoencoderRecipe[FolderData](train=shapes_autoencoder().train, data=FolderData())


def folder_dtm() -> GeneratorRecipe[FolderData]:
    """DTM on your own captioned images: set data.folder, and autoencoder to the folder of your autoencoder's run."""
    train = TrainConfig(
        steps=20_000, batch_size=64, learning_rate=1e-3, weight_decay=0.01, warmup=500, preview_every=1000
    )
    return GeneratorRecipe[FolderData](
        train=train, variant="dtm-mean", data=FolderData(), autoencoder="none", sampling=SamplingSettings(guidance=3.0)
    )


def _shards(variant: str, about: str) -> Callable[[], ShardRecipe]:
    """A small recipe of one variant on shards: some 5M parameters, hours of a CPU."""

    def recipe() -> ShardRecipe:
        train = TrainConfig(
            steps=40_000, batch_size=64, learning_rate=1e-3, betas=(0.9, 0.95), weight_decay=0.01, warmup=500, cooldown=0.3,
            ema_decay=0.999, validate_every=1000, preview_every=1000, seed=1,
        )  # fmt: skip
        backbone = BackboneSettings(width=192, depth=6, heads=6)
        return ShardRecipe(
            train=train, variant=variant, backbone=backbone, head=HeadSettings(width=192, depth=3),
            sampling=SamplingSettings(guidance=3.0),
        )  # fmt: skip

    recipe.__doc__ = about
    return recipe


RECIPES: dict[str, Callable[[], Recipe]] = {
    "shapes-fm": _shapes("fm", 25_000, "Flow matching on the latents of `shapes`."),
    "shapes-dtm": _shapes("dtm", 20_000, "DTM on the latents of `shapes`, as in the paper."),
    "shapes-dtm-mean": _shapes(
        "dtm-mean", 20_000,
        "DTM with a mean read-out beside the head, which learns faster.",
    ),
    "shapes-dtm-from-fm": _shapes(
        "dtm-mean", 5_000,
        "DTM out of trained flow matching, whose backbone and mean stay: a head is learnt. The default model.",
        init=StartSettings(model="shapes-fm", freeze=True),
    ),
    "shapes-ar": _shapes("ar", 11_700, "Continuous AR, token by token.", **_OWN_STEPS),
    "shapes-artm-2": _shapes("artm-2", 11_700, "ARTM with two transitions.", **_OWN_STEPS),
    "shapes-artm-3": _shapes("artm-3", 11_700, "ARTM with three transitions.", **_OWN_STEPS),
    "shapes-artm-3-dependent": _shapes(
        "artm-3-dependent", 11_700, "The paper's ablation: ARTM on the process that keeps its noise.", **_OWN_STEPS
    ),
    "shapes-fhtm-2": _shapes("fhtm-2", 10_100, "FHTM with two transitions.", **_OWN_STEPS),
    "shapes-fhtm-2-llama": _shapes("fhtm-2", 8_700, "FHTM with two transitions on a Llama.", **_LLAMA),
    "shapes-fhtm-3": _shapes("fhtm-3", 6_500, "FHTM with three transitions.", **_OWN_STEPS),
    "shapes-fhtm-3-llama": _shapes("fhtm-3", 5_700, "FHTM with three transitions on a Llama.", **_LLAMA),
    "shapes-fhtm-3-dependent": _shapes(
        "fhtm-3-dependent", 6_500, "The paper's ablation: FHTM on the process that keeps its noise.", **_OWN_STEPS
    ),
    "shapes-mar": _shapes("mar", 18_500, "MAR: random sets of tokens, most of them hidden in training.", **_OWN_STEPS),
    "shapes-mar-fluid": _shapes("mar-fluid", 18_500, "MAR with Fluid's cosine masking.", **_OWN_STEPS),
    "shapes-martm-2": _shapes("martm-2", 18_500, "MARTM with two transitions.", **_OWN_STEPS),
    "shapes-ar-discrete": _shapes("ar-discrete", 16_000, "AR on codes: a language model of images.", **_CODES),
    "shapes-mar-discrete": _shapes("mar-discrete", 16_000, "Masked codes, likeliest first: MaskGIT.", **_MASKGIT),
    "shapes-autoencoder": shapes_autoencoder,
    "shapes-codes-autoencoder": shapes_codes_autoencoder,
    "folder-dtm": folder_dtm,
    "folder-autoencoder": folder_autoencoder,
    "shards-fm": _shards("fm", "Flow matching on what `tmatch prepare` made: set shards."),
    "shards-dtm": _shards("dtm", "DTM on what `tmatch prepare` made, as in the paper: set shards."),
    "shards-dtm-mean": _shards("dtm-mean", "DTM with a mean read-out on what `tmatch prepare` made: set shards."),
    **LADDER_RECIPES,
    **PAPER_RECIPES,
}  # fmt: skip
"""A function for each name, that returns the whole configuration."""
