"""Runs small enough for tests."""

from typing import Any

from tmatch.datasets import ShapesData, WordsConfig
from tmatch.generation.config import SamplingConfig
from tmatch.runs import BackboneConfig, InitConfig, RunConfig
from tmatch.train import TrainConfig
from tmatch.variants import HeadConfig

TRAIN = TrainConfig(steps=6, batch_size=8, checkpoint_every=2, validate_every=3, preview_every=3)
NETWORKS: dict[str, Any] = {
    "backbone": BackboneConfig(width=16, depth=1, heads=2),
    "head": HeadConfig(width=16, depth=1),
    "text": WordsConfig(width=16, heads=2),
    "sampling": SamplingConfig(steps=2),
}


def small_run(variant: str = "dtm-mean", **changes: object) -> RunConfig:
    own: dict[str, Any] = {"train": TRAIN, "data": ShapesData(images=40), "autoencoder": "shapes", **NETWORKS}
    return RunConfig(variant=variant, validation_images=4, eval_prompts=6, **{**own, **changes})


def changed(run: RunConfig, **train: object) -> RunConfig:
    """The same run with other training settings."""
    return run.model_copy(update={"train": run.train.model_copy(update=train)})


def init_run(variant: str, steps: int = 4, **init: object) -> RunConfig:
    """A run that starts from a trained model."""
    train = TrainConfig(
        steps=steps, batch_size=4, device="cpu", warmup=0, ema_decay=0.0, checkpoint_every=2, validate_every=0
    )  # fmt: skip
    return small_run(variant, train=train, data=ShapesData(images=20), init=InitConfig.model_validate(init))
