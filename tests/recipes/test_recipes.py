"""Every recipe of a generator builds its network, with the published sizes; nothing is allocated."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tmatch.app.plan import Hardware, plan_run
from tmatch.data import CaptionedImages
from tmatch.datasets import FolderData, ShapesData
from tmatch.model import Model
from tmatch.plan.training import parameters
from tmatch.recipes import GROUPS, RECIPES
from tmatch.runs import InitConfig, RunConfig, preflight
from tmatch.runs.finetune import preflight_init
from tmatch.variants import VARIANTS

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
"""config.json of HuggingFaceTB/SmolLM2-135M."""


class LabelledImages(CaptionedImages):
    """One image of each of ten classes."""

    classes = tuple("0123456789")
    captions = range(10)

    def __init__(self, size: int) -> None:
        self.size = size

    def load(self, indices: Sequence[int]) -> Tensor:
        return torch.zeros(len(indices), 3, self.size, self.size)

    def fingerprint(self) -> str:
        return ""


@pytest.fixture(autouse=True)
def _assumed_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderData, "training", lambda data: LabelledImages(data.size))


@pytest.fixture
def language_model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    return str(tmp_path)


def recipe_of(name: str, language_model: str = "") -> RunConfig:
    """A recipe that needs no data and no hub."""
    run = RECIPES[name]()
    assert isinstance(run, RunConfig)
    model = language_model if run.backbone.model is not None else None
    changes: dict[str, Any] = {"backbone": run.backbone.model_copy(update={"model": model})}
    if isinstance(run.data, ShapesData):
        changes["data"] = ShapesData(images=1)
    return run.model_copy(update=changes)


def network_of(run: RunConfig) -> Model:
    sizes = run.input_shapes()
    with torch.device("meta"):
        return run.network(sizes.shape, sizes.text[1], sizes.codebook_size)


MILLIONS = {
    "shapes-fm": 1.3, "shapes-dtm": 1.6, "shapes-artm-3": 1.7, "shapes-fhtm-3-llama": 1.3, "shapes-mar": 1.7,
    "fashion-mnist-fm": 1.0, "fashion-mnist-dtm-mean": 1.4, "cifar10-fm": 1.3, "cifar10-artm-2": 1.7,
    "shards-fm": 4.8, "shards-dtm": 5.7, "shards-fhtm-3-huggingface": 110,
    "fm-s": 31, "fm-b": 122, "fm-l": 417, "fm-xl": 612, "dtm-s": 38, "dtm-b": 136, "dtm-l": 458, "dtm-xl": 653,
    "imagenet-fm-s": 30, "imagenet-fm-b": 120, "imagenet-fm-l": 414, "imagenet-fm-xl": 609,
    "imagenet-dtm-s": 36, "imagenet-dtm-b": 134, "imagenet-dtm-l": 455, "imagenet-dtm-xl": 650,
    "imagenet-ar-b": 273, "imagenet-artm-3-b": 273, "imagenet-fhtm-3-b": 267, "imagenet-martm-2-b": 274,
    "imagenet-mar-b": 274, "imagenet-mar-l": 629, "imagenet-mar-h": 1229,
}  # fmt: skip
"""Parameters without embeddings of words and classes."""
GENERATORS = [name for name in RECIPES if not name.endswith("autoencoder")]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_recipe_builds_its_network(name: str, language_model: str) -> None:
    run = recipe_of(name, language_model)
    found = sum(parameters(network_of(run)).values())
    assert found == pytest.approx(1e6 * MILLIONS.get(name, found / 1e6), rel=0.02, abs=6e4)
    rows, columns, _ = run.input_shapes().shape
    assert 16 <= rows * columns <= 256


def test_every_group_has_a_documented_size() -> None:
    """The paper's sizes are those of test_paper.py."""
    assert {group for group, members in GROUPS.items() if not members.keys() & MILLIONS.keys()} == {"folder", "paper"}
    assert MILLIONS.keys() >= GROUPS["sizes"].keys()
    assert MILLIONS.keys() >= {name for name in GROUPS["imagenet"] if "from-fm" not in name}


DIT = {"s": (384, 12, 6, 33), "b": (768, 12, 12, 130), "l": (1024, 24, 16, 458), "xl": (1152, 28, 16, 675)}
"""Width, depth, heads and millions of parameters of DiT and SiT (Peebles and Xie, 2022; Ma et al., 2024)."""
MAR = {"b": (768, 24, 12, 208), "l": (1024, 32, 16, 479), "h": (1280, 40, 16, 943)}
MAR_HEADS = {"b": (1024, 6, 2.9), "l": (1280, 8, 3.0), "h": (1536, 12, 3.2)}
"""Those of MAR with encoder and decoder together, and of its head with the guidance scale (Li et al., 2024)."""


def imagenet(*variants: str) -> list[str]:
    return [name for name in GROUPS["imagenet"] if recipe_of(name).variant in variants]


def size_of(name: str) -> str:
    return name.rpartition("-")[2]


@pytest.mark.parametrize("name", imagenet("fm", "dtm", "dtm-mean"))
def test_fm_and_dtm_have_the_settings_of_dit(name: str) -> None:
    run, (width, depth, heads, millions) = recipe_of(name), DIT[size_of(name)]
    train = run.train
    assert train.steps == (7_000_000 if size_of(name) == "xl" and "from" not in name else 400_000)
    assert (train.batch_size, train.learning_rate, train.warmup, train.cooldown) == (256, 1e-4, 0, 0.0)
    assert (train.optimizer, train.weight_decay, train.betas) == ("adamw", 0.0, (0.9, 0.999))
    assert (train.ema_decay, run.caption_dropout) == (0.9999, 0.1)
    assert (run.backbone.width, run.backbone.depth, run.backbone.heads) == (width, depth, heads)
    assert (run.patch, run.assumed.size // run.assumed.factor, run.assumed.channels) == ((2, 2), 32, 4)
    assert parameters(network_of(run))["backbone"] == pytest.approx(1e6 * millions, rel=0.11), (
        "the class enters in another way"
    )


@pytest.mark.parametrize("name", imagenet("ar", "artm-3", "fhtm-3", "mar", "martm-2"))
def test_variants_that_sample_tokens_in_turn_have_the_settings_of_mar(name: str) -> None:
    run, size = recipe_of(name), size_of(name)
    (width, depth, heads, millions), (head_width, head_depth, guidance) = MAR[size], MAR_HEADS[size]
    train = run.train
    epochs = train.batch_size / 1_281_167
    assert (train.steps * epochs, train.warmup * epochs) == pytest.approx((400, 100), rel=0.01)
    assert (train.batch_size, train.learning_rate, train.cooldown) == (2048, 8e-4, 0.0)
    assert (train.weight_decay, train.betas, train.max_grad_norm) == (0.02, (0.9, 0.95), 3.0)
    assert (train.ema_decay, run.caption_dropout) == (0.9999, 0.1)
    assert (run.backbone.width, run.backbone.depth, run.backbone.heads) == (width, depth, heads)
    assert (run.head.width, run.head.depth, run.head.samples_per_token) == (head_width, head_depth, 4)
    assert (run.patch, run.assumed.size // run.assumed.factor, run.assumed.channels) == ((1, 1), 16, 16)
    if VARIANTS[run.variant].evaluations == "T K":
        assert (run.sampling.guidance_schedule, run.sampling.guidance) == ("rising", guidance)
        assert (run.sampling.iterations or 0) * VARIANTS[run.variant].times.steps == 256
    sizes = run.input_shapes()
    assert (sizes.shape, sizes.text, sizes.classes) == ((16, 16, 16), (1, width), 1000)
    assert 1e6 * MILLIONS[name] == pytest.approx(1e6 * millions, rel=0.35), "cross-attention to the class"


def test_the_head_on_a_frozen_backbone_belongs_to_a_recipe_of_fm() -> None:
    """The FM recipe that the name of its run says has the same backbone and data, and its weights stay."""
    for name in ("fashion-mnist", "cifar10", *(f"imagenet-{size}" for size in DIT)):
        data, _, size = name.partition("-") if name.startswith("imagenet") else (name, "", "")
        tail = f"-{size}" if size else ""
        run, start = recipe_of(f"{data}-dtm-from-fm{tail}"), recipe_of(f"{data}-fm{tail}")
        assert run.init == InitConfig(model=f"runs/{data}-fm{tail}", freeze=True)
        assert (run.backbone, run.data, run.patch, run.text) == (start.backbone, start.data, start.patch, start.text)
        model = network_of(run)
        preflight_init(run.init, model)
        assert parameters(model, trained=True) == {"backbone": 0, "head": parameters(model)["head"], "other": 0}


def test_a_plan_counts_the_table_of_class_embeddings() -> None:
    """Which starts frozen where the model to start from has one, too."""
    run = recipe_of("imagenet-dtm-from-fm-s")
    own, table = parameters(network_of(run)), 1001 * 384
    frozen, free = (plan_run(each, Hardware()) for each in (run, run.model_copy(update={"init": InitConfig()})))
    assert frozen.parameters == free.parameters == {**own, "other": own["other"] + table}
    assert free.trained == free.parameters
    assert frozen.trained == {"backbone": 0, "head": own["head"], "other": 0}


def test_a_dry_run_says_that_data_shards_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"shards contains no complete set of shards: .* run `tmatch prepare`"):
        preflight(recipe_of("imagenet-dtm-s"), tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in GROUPS["small"] if "from-fm" not in name])
def test_small_recipes_learn_from_classes(name: str, tmp_path: Path) -> None:
    run = recipe_of(name)
    preflight(run, tmp_path / "run")
    sizes = run.input_shapes()
    side = 7 if "mnist" in name else 8
    assert (sizes.shape, sizes.text, sizes.classes) == ((side, side, 4 * 4 * 3), (1, 128), 10)
