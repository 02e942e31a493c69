"""Class-conditional ImageNet at 256 x 256: published settings of DiT, SiT and MAR, with the networks of this library.

FM and DTM follow DiT and SiT, which share all settings (facebookresearch/DiT and willisma/SiT: models.py, train.py).
Variants that sample tokens in turn follow MAR (LTH14/mar: models/mar.py, main_mar.py, README.md).
docs/paper_map.md says what differs and what we chose.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tmatch.datasets import AssumedData, ShardsData
from tmatch.generation.config import SamplingConfig
from tmatch.recipes.paper import DIT_SIZES, HEAD_SIZES
from tmatch.runs import BackboneConfig, InitConfig, RunConfig
from tmatch.train import TrainConfig
from tmatch.variants import HeadConfig


@dataclass(frozen=True)
class _Published:
    """Settings that a paper shares among its sizes."""

    name: str
    sizes: Mapping[str, tuple[int, int, int]]
    """Width, depth and heads."""
    heads: Mapping[str, tuple[int, int]]
    """Width and depth of the head."""
    steps: Mapping[str, int]
    latents: Mapping[str, int]
    """Downsampling factor and channels of the autoencoder."""
    patch: tuple[int, int]
    train: Mapping[str, Any]
    samples_per_token: int = 1


_DIT = _Published(
    "DiT", DIT_SIZES, HEAD_SIZES, {"s": 400_000, "b": 400_000, "l": 400_000, "xl": 7_000_000},
    latents={"factor": 8, "channels": 4}, patch=(2, 2),
    train={"batch_size": 256, "learning_rate": 1e-4, "warmup": 0, "weight_decay": 0.0, "betas": (0.9, 0.999)},
)  # fmt: skip
_EPOCH = 1_281_167 // 2048
_MAR = _Published(
    "MAR",
    {"b": (768, 12 + 12, 12), "l": (1024, 16 + 16, 16), "h": (1280, 20 + 20, 16)},  # encoder + decoder
    {"b": (1024, 6), "l": (1280, 8), "h": (1536, 12)},
    dict.fromkeys("blh", 400 * _EPOCH),
    latents={"factor": 16, "channels": 16}, patch=(1, 1), samples_per_token=4,
    train={
        "batch_size": 2048, "learning_rate": 1e-4 * 2048 / 256, "warmup": 100 * _EPOCH, "weight_decay": 0.02,
        "betas": (0.9, 0.95), "max_grad_norm": 3.0,
    },
)  # fmt: skip


def _imagenet(
    paper: _Published, size: str, variant: str, title: str, sampling: SamplingConfig, start: str | None = None
) -> Callable[[], RunConfig]:
    """A variant on data shards of ImageNet, with the class dropped for one image in ten; `start` is frozen."""
    (width, depth, heads), (head_width, head_depth) = paper.sizes[size], paper.heads[size]

    def recipe() -> RunConfig:
        return RunConfig(
            train=TrainConfig(
                steps=paper.steps[size], ema_decay=0.9999, precision="bfloat16", checkpoint_every=5000,
                validate_every=5000, preview_every=10_000, seed=1, **paper.train,
            ),
            variant=variant, data=ShardsData(workers=4, label_width=width), patch=paper.patch, caption_dropout=0.1,
            assumed=AssumedData(classes=1000, **paper.latents),
            backbone=BackboneConfig(width=width, depth=depth, heads=heads),
            head=HeadConfig(width=head_width, depth=head_depth, samples_per_token=paper.samples_per_token),
            init=InitConfig(model=start, freeze=start is not None), sampling=sampling,
        )  # fmt: skip

    recipe.__doc__ = f"{title} on ImageNet at the size of {paper.name}-{size.upper()}."
    return recipe


_FM = SamplingConfig(steps=250, guidance=1.5)
_DTM = SamplingConfig(steps=32, guidance=1.5)
_FROM_FM = "DTM head on the frozen backbone of the run runs/imagenet-fm-{}"
_IN_TURN = SamplingConfig(steps=None, head_steps=100, guidance=3.0)
_MASKED = _IN_TURN.updated(guidance_schedule="rising", iterations=256)

IMAGENET_RECIPES: dict[str, Callable[[], RunConfig]] = {
    "imagenet-fm-s": _imagenet(_DIT, "s", "fm", "Flow matching", _FM),
    "imagenet-fm-b": _imagenet(_DIT, "b", "fm", "Flow matching", _FM),
    "imagenet-fm-l": _imagenet(_DIT, "l", "fm", "Flow matching", _FM),
    "imagenet-fm-xl": _imagenet(_DIT, "xl", "fm", "Flow matching", _FM),
    "imagenet-dtm-s": _imagenet(_DIT, "s", "dtm", "DTM", _DTM),
    "imagenet-dtm-b": _imagenet(_DIT, "b", "dtm", "DTM", _DTM),
    "imagenet-dtm-l": _imagenet(_DIT, "l", "dtm", "DTM", _DTM),
    "imagenet-dtm-xl": _imagenet(_DIT, "xl", "dtm", "DTM", _DTM),
    **{
        f"imagenet-dtm-from-fm-{size}": _imagenet(
            replace(_DIT, steps={size: 400_000}), size, "dtm-mean", _FROM_FM.format(size), _DTM,
            start=f"runs/imagenet-fm-{size}",
        )
        for size in _DIT.sizes
    },
    "imagenet-ar-b": _imagenet(_MAR, "b", "ar", "AR", _IN_TURN),
    "imagenet-artm-3-b": _imagenet(_MAR, "b", "artm-3", "ARTM with three transitions", _IN_TURN),
    "imagenet-fhtm-3-b": _imagenet(_MAR, "b", "fhtm-3", "FHTM with three transitions", _IN_TURN),
    "imagenet-mar-b": _imagenet(_MAR, "b", "mar", "MAR", _MASKED.updated(guidance=2.9)),
    "imagenet-mar-l": _imagenet(_MAR, "l", "mar", "MAR", _MASKED.updated(guidance=3.0)),
    "imagenet-mar-h": _imagenet(_MAR, "h", "mar", "MAR", _MASKED.updated(guidance=3.2)),
    "imagenet-martm-2-b": _imagenet(
        _MAR, "b", "martm-2", "MARTM with two transitions", _MASKED.updated(guidance=2.9, iterations=128)
    ),
}  # fmt: skip
"""They need labelled data shards: latents of an SD autoencoder (DiT), or of a KL autoencoder of factor 16 (MAR)."""
