"""The recipes, by name."""

from collections.abc import Callable
from typing import Any

from tmatch.recipes.autoencoder import AutoencoderRecipe, shapes_autoencoder, shapes_codes_autoencoder
from tmatch.recipes.generator import GeneratorRecipe, SamplingSettings
from tmatch.recipes.settings import FolderData, ShapesData
from tmatch.train import TrainConfig

Recipe = AutoencoderRecipe[Any] | GeneratorRecipe[Any]


def _shapes_training(steps: int) -> TrainConfig:
    """The same descent for every generator of `shapes`; the number of steps makes their training seconds equal."""
    return TrainConfig(
        steps=steps, batch=64, learning_rate=2e-3, betas=(0.9, 0.95), weight_decay=0.01, warmup=200, cooldown=0.3,
        ema=0.999, validate_every=1000, preview_every=1000, seed=1,
    )  # fmt: skip


def shapes_fm() -> GeneratorRecipe[ShapesData]:
    """Flow matching on the latents of `shapes`."""
    return GeneratorRecipe[ShapesData](train=_shapes_training(30_000), variant="fm", data=ShapesData())


def shapes_dtm() -> GeneratorRecipe[ShapesData]:
    """DTM on the latents of `shapes`, as in the paper."""
    return GeneratorRecipe[ShapesData](train=_shapes_training(24_000), variant="dtm", data=ShapesData())


def shapes_dtm_mean() -> GeneratorRecipe[ShapesData]:
    """DTM with a mean read-out beside the head, which learns faster: the model the package comes with."""
    return GeneratorRecipe[ShapesData](train=_shapes_training(24_000), variant="dtm-mean", data=ShapesData())


def folder_autoencoder() -> AutoencoderRecipe[FolderData]:
    """An autoencoder of your own pictures: set data.folder."""
    return AutoencoderRecipe[FolderData](train=shapes_autoencoder().train, data=FolderData())


def folder_dtm() -> GeneratorRecipe[FolderData]:
    """DTM on your own captioned pictures: set data.folder, and autoencoder to the folder of your autoencoder's run."""
    train = TrainConfig(steps=20_000, batch=64, learning_rate=1e-3, weight_decay=0.01, warmup=500, preview_every=1000)
    return GeneratorRecipe[FolderData](
        train=train, variant="dtm-mean", data=FolderData(), autoencoder="none", sampling=SamplingSettings(guidance=3.0)
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "shapes-fm": shapes_fm,
    "shapes-dtm": shapes_dtm,
    "shapes-dtm-mean": shapes_dtm_mean,
    "shapes-autoencoder": shapes_autoencoder,
    "shapes-codes-autoencoder": shapes_codes_autoencoder,
    "folder-dtm": folder_dtm,
    "folder-autoencoder": folder_autoencoder,
}
