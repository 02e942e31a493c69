"""Fashion-MNIST and CIFAR-10 by class, in pixels: runs of minutes on a CPU.

A token is a patch of 4 x 4 pixels in colour, 48 numbers: 49 tokens for 28 x 28 pixels, 64 for 32 x 32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tmatch.datasets import FolderData, WordsConfig
from tmatch.generation.config import SamplingConfig
from tmatch.runs import BackboneConfig, InitConfig, RunConfig
from tmatch.train import TrainConfig
from tmatch.variants import HeadConfig


@dataclass(frozen=True)
class _Images:
    """A data set, and the depth of a backbone for it."""

    title: str
    folder: str
    size: int
    depth: int


_FASHION = _Images("Fashion-MNIST", "fashion-mnist", 28, 3)
_CIFAR = _Images("CIFAR-10", "cifar10", 32, 4)
_FREE = SamplingConfig(steps=16)
_OWN = SamplingConfig(steps=None)


def _small(
    images: _Images, variant: str, steps: int, title: str, sampling: SamplingConfig = _FREE, start: str | None = None
) -> Callable[[], RunConfig]:
    """A variant on the folder data/NAME; `start` is frozen."""

    def recipe() -> RunConfig:
        return RunConfig(
            train=TrainConfig(
                steps=steps, batch_size=64, learning_rate=1e-3, betas=(0.9, 0.95), weight_decay=0.01, warmup=200,
                cooldown=0.3, ema_decay=0.999, validate_every=500, preview_every=500, seed=1,
            ),
            variant=variant, data=FolderData(folder=Path("data") / images.folder, size=images.size),
            autoencoder="none", patch=(4, 4), text=WordsConfig(), backbone=BackboneConfig(depth=images.depth),
            head=HeadConfig(width=128, depth=2), init=InitConfig(model=start, freeze=start is not None),
            sampling=sampling,
        )  # fmt: skip

    recipe.__doc__ = f"{title} on {images.title}."
    return recipe


SMALL_RECIPES: dict[str, Callable[[], RunConfig]] = {
    "fashion-mnist-fm": _small(_FASHION, "fm", 3000, "Flow matching"),
    "fashion-mnist-dtm-mean": _small(_FASHION, "dtm-mean", 2500, "DTM with a mean read-out"),
    "fashion-mnist-dtm-from-fm": _small(
        _FASHION, "dtm-mean", 1500, "DTM head on the frozen backbone of the run runs/fashion-mnist-fm",
        start="runs/fashion-mnist-fm",
    ),
    "fashion-mnist-artm-2": _small(_FASHION, "artm-2", 1500, "ARTM with two transitions", _OWN),
    "cifar10-fm": _small(_CIFAR, "fm", 6000, "Flow matching"),
    "cifar10-dtm-mean": _small(_CIFAR, "dtm-mean", 5000, "DTM with a mean read-out"),
    "cifar10-dtm-from-fm": _small(
        _CIFAR, "dtm-mean", 3000, "DTM head on the frozen backbone of the run runs/cifar10-fm", start="runs/cifar10-fm",
    ),
    "cifar10-artm-2": _small(_CIFAR, "artm-2", 3000, "ARTM with two transitions", _OWN),
}  # fmt: skip
"""`text` sets the width of the class embeddings. Steps are chosen for about equal training times per data set."""
