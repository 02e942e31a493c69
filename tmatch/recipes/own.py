"""Recipes on your own images: a folder, or the data shards of `tmatch prepare`."""

from collections.abc import Callable
from typing import Any

from tmatch.datasets import FolderData, ShardsData, WordsConfig
from tmatch.generation.config import SamplingConfig
from tmatch.recipes.shapes import SHAPES_RECIPES
from tmatch.runs import AutoencoderRun, BackboneConfig, InitConfig, RunConfig
from tmatch.train import TrainConfig
from tmatch.variants import HeadConfig


def folder_autoencoder() -> AutoencoderRun:
    """An autoencoder of your own images: set data.folder."""
    return AutoencoderRun(train=SHAPES_RECIPES["shapes-autoencoder"]().train, data=FolderData())


def folder_dtm() -> RunConfig:
    """DTM on your own captioned images: set data.folder, and autoencoder to the folder of your autoencoder."""
    train = TrainConfig(
        steps=20_000, batch_size=64, learning_rate=1e-3, weight_decay=0.01, warmup=500, preview_every=1000
    )
    return RunConfig(
        train=train, variant="dtm-mean", data=FolderData(), autoencoder="none", text=WordsConfig(),
        head=HeadConfig(width=128, depth=2), sampling=SamplingConfig(guidance=3.0),
    )  # fmt: skip


def _shards(variant: str, description: str, learning_rate: float = 1e-3, **settings: Any) -> Callable[[], RunConfig]:  # noqa: ANN401
    """A small model on data shards: unless `settings` say otherwise, about 5M parameters, hours on a CPU."""

    def recipe() -> RunConfig:
        train = TrainConfig(
            steps=40_000, batch_size=64, learning_rate=learning_rate, betas=(0.9, 0.95), weight_decay=0.01, warmup=500,
            cooldown=0.3, ema_decay=0.999, validate_every=1000, preview_every=1000, seed=1,
        )  # fmt: skip
        own = {"backbone": BackboneConfig(width=192, depth=6, heads=6), "sampling": SamplingConfig(guidance=3.0)}
        return RunConfig(
            train=train, variant=variant, data=ShardsData(), head=HeadConfig(width=192, depth=3), **{**own, **settings}
        )

    recipe.__doc__ = description
    return recipe


FOLDER_RECIPES: dict[str, Callable[[], RunConfig | AutoencoderRun]] = {
    "folder-dtm": folder_dtm,
    "folder-autoencoder": folder_autoencoder,
}
SHARDS_RECIPES: dict[str, Callable[[], RunConfig]] = {
    "shards-fm": _shards("fm", "Flow matching on data shards: set data.folders."),
    "shards-dtm": _shards("dtm", "DTM on data shards, as in the paper: set data.folders."),
    "shards-dtm-mean": _shards("dtm-mean", "DTM with a mean read-out on data shards: set data.folders."),
    "shards-fhtm-3-huggingface": _shards(
        "fhtm-3", "FHTM on the pretrained language model SmolLM2-135M: set data.folders.", learning_rate=3e-4,
        backbone=BackboneConfig(kind="huggingface", model="HuggingFaceTB/SmolLM2-135M"),
        init=InitConfig(pretrained=True), sampling=SamplingConfig(steps=None, guidance=3.0),
    ),
}  # fmt: skip
