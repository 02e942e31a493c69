"""Recipes on `shapes`: every variant of the paper at a size that trains on one CPU core."""

from collections.abc import Callable
from typing import Any

from tmatch.codec.saved import SHIPPED
from tmatch.datasets import ShapesData, WordsConfig
from tmatch.generation.config import SamplingConfig
from tmatch.runs import AutoencoderRun, BackboneConfig, InitConfig, RunConfig
from tmatch.train import TrainConfig
from tmatch.variants import HeadConfig


def _shapes(
    variant: str, steps: int, description: str, learning_rate: float = 2e-3, **settings: Any  # noqa: ANN401
) -> Callable[[], RunConfig]:  # fmt: skip
    """A variant on the latents or codes of `shapes`; `steps` makes the training seconds of all variants equal.

    They are about 2,000 CPU seconds, with Muon. A head on a frozen backbone takes less, and is trained with AdamW.
    """

    def recipe() -> RunConfig:
        train = TrainConfig(
            steps=steps, batch_size=64, optimizer="adamw" if "init" in settings else "muon",
            learning_rate=learning_rate, betas=(0.9, 0.95), weight_decay=0.01, warmup=200, cooldown=0.3,
            ema_decay=0.999, validate_every=1000, preview_every=1000, seed=1,
        )  # fmt: skip
        own = {"autoencoder": "shapes", "text": WordsConfig(), "head": HeadConfig(width=128, depth=2), **settings}
        return RunConfig(train=train, variant=variant, data=ShapesData(), **own)

    recipe.__doc__ = description
    return recipe


def _autoencoder(name: str, steps: int, description: str) -> Callable[[], AutoencoderRun]:
    def recipe() -> AutoencoderRun:
        train = TrainConfig(
            steps=steps, batch_size=64, learning_rate=2e-3, warmup=100, cooldown=0.5, ema_decay=0.995, seed=1
        )  # fmt: skip
        data = ShapesData(images=20_000, withhold=False)
        return AutoencoderRun(train=train, data=data, **SHIPPED[name].model_dump())

    recipe.__doc__ = description
    return recipe


_OWN_STEPS: dict[str, Any] = {"sampling": SamplingConfig(steps=None, guidance=3.0)}
_CODES: dict[str, Any] = {**_OWN_STEPS, "autoencoder": "shapes-codes", "patch": (1, 1)}
_MASKGIT: dict[str, Any] = {**_CODES, "sampling": SamplingConfig(steps=None, order="confidence")}
_LLAMA: dict[str, Any] = {**_OWN_STEPS, "backbone": BackboneConfig(kind="llama", depth=5)}

SHAPES_RECIPES: dict[str, Callable[[], RunConfig | AutoencoderRun]] = {
    "shapes-fm": _shapes("fm", 14_400, "Flow matching.", learning_rate=4e-3, density="logit-normal"),
    "shapes-dtm": _shapes("dtm", 11_800, "DTM as in the paper."),
    "shapes-dtm-mean": _shapes("dtm-mean", 11_800, "DTM with a mean read-out beside the head, which learns faster."),
    "shapes-dtm-from-fm": _shapes(
        "dtm-mean", 5_000, "DTM head on the frozen backbone of shapes-fm: the default model.",
        init=InitConfig(model="shapes-fm", freeze=True),
    ),
    "shapes-dtm-patch": _shapes(
        "dtm-mean", 5_000, "DTM head on the frozen backbone of shapes-fm, 2x2 tokens at a time.",
        init=InitConfig(model="shapes-fm", freeze=True), head=HeadConfig(width=128, depth=2, patch=(2, 2)),
    ),
    "shapes-dtm-joint": _shapes(
        "dtm-mean", 5_000, "Transformer head on the frozen backbone of shapes-fm, distilled from its mean.",
        init=InitConfig(model="shapes-fm", freeze=True),
        head=HeadConfig(kind="transformer", width=128, depth=2, distill=True),
    ),
    "shapes-ar": _shapes("ar", 8_200, "Continuous AR, token by token.", **_OWN_STEPS),
    "shapes-artm-2": _shapes("artm-2", 8_200, "ARTM with two transitions.", **_OWN_STEPS),
    "shapes-artm-3": _shapes("artm-3", 8_200, "ARTM with three transitions.", **_OWN_STEPS),
    "shapes-artm-3-dependent": _shapes(
        "artm-3-dependent", 8_200, "The paper's ablation: ARTM on the dependent linear process.", **_OWN_STEPS
    ),
    "shapes-fhtm-2": _shapes("fhtm-2", 7_700, "FHTM with two transitions.", **_OWN_STEPS),
    "shapes-fhtm-2-llama": _shapes("fhtm-2", 6_500, "FHTM with two transitions on a Llama.", **_LLAMA),
    "shapes-fhtm-3": _shapes("fhtm-3", 5_700, "FHTM with three transitions.", **_OWN_STEPS),
    "shapes-fhtm-3-llama": _shapes("fhtm-3", 4_400, "FHTM with three transitions on a Llama.", **_LLAMA),
    "shapes-fhtm-3-dependent": _shapes(
        "fhtm-3-dependent", 5_700, "The paper's ablation: FHTM on the dependent linear process.", **_OWN_STEPS
    ),
    "shapes-mar": _shapes("mar", 11_300, "MAR: random sets of tokens, most of them masked in training.", **_OWN_STEPS),
    "shapes-mar-fluid": _shapes("mar-fluid", 11_300, "MAR with Fluid's cosine masking.", **_OWN_STEPS),
    "shapes-martm-2": _shapes("martm-2", 11_300, "MARTM with two transitions.", **_OWN_STEPS),
    "shapes-ar-discrete": _shapes("ar-discrete", 9_100, "AR on codes: a language model of images.", **_CODES),
    "shapes-mar-discrete": _shapes("mar-discrete", 9_100, "Masked codes, most confident first: MaskGIT.", **_MASKGIT),
    "shapes-autoencoder": _autoencoder("shapes", 1500, "The autoencoder: 32x32x3 to 8x8x4."),
    "shapes-codes-autoencoder": _autoencoder("shapes-codes", 4000, "The discrete autoencoder: 32x32x3 to 4x4 codes."),
}  # fmt: skip
