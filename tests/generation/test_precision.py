"""Sampling in lower precision."""

from pathlib import Path

import pytest
import torch
from laws import SHAPE, condition, shape_of, small_model, steps_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tmatch as tm
from tmatch.conditioning import ClassLabels
from tmatch.data import InMemory
from tmatch.tensors import Precision, matmul_precision, warn_if_emulated
from tmatch.train import Captioned, GeneratorTask, TrainConfig, Trainer

CPU = torch.device("cpu")


def sampled(model: tm.Model, name: str, precision: Precision, **how: object) -> torch.Tensor:
    params = tm.SamplingParams(tm.Euler(2), tm.ClassifierFreeGuidance(condition(1, seed=9), 1.5))
    given = {"steps": steps_of(name), "params": params, "precision": precision, **how}
    return tm.generate(model, shape_of(name), range(3), condition(3), **given).x


@pytest.mark.parametrize("name", [name for name, row in tm.VARIANTS.items() if not row.discrete])
def test_bfloat16_is_close_to_float32_and_states_stay_float32(name: str) -> None:
    model = small_model(name)
    fine, coarse = (sampled(model, name, precision) for precision in ("float32", "bfloat16"))
    assert coarse.dtype == torch.float32
    assert not torch.equal(coarse, coarse.bfloat16().float()), "states are not rounded"
    assert 1e-5 < (coarse - fine).norm() / fine.norm() < 0.03  # 0.007 was seen at most


@pytest.mark.parametrize("name", [name for name, row in tm.VARIANTS.items() if row.discrete])
def test_codes_can_be_sampled_in_bfloat16(name: str) -> None:
    x = sampled(small_model(name), name, "bfloat16")
    assert torch.equal(x, x.round())


@pytest.mark.parametrize("backbone", [None, tm.Llama(SHAPE[-1], width=16, depth=1, heads=2, condition_width=8)])
def test_kv_caches_have_the_dtype_of_autocast(backbone: nn.Module | None) -> None:
    model = small_model("fhtm-2", backbone=backbone)
    with torch.no_grad(), matmul_precision("bfloat16", CPU):
        cache = model.kernel.backbone.init_cache(None, condition(1), 1, 4)
    assert {layer.keys.dtype for layer in cache.kv_caches} == {torch.bfloat16}


class Casts(TorchDispatchMode):
    """Counts the casts of each weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.count = dict.fromkeys(map(id, model.parameters()), 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if func is torch.ops.aten._to_copy.default and id(args[0]) in self.count:
            self.count[id(args[0])] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["fm", "dtm", "artm-2", "fhtm-2"])
def test_a_frozen_weight_is_cast_once_and_frozen_again(name: str) -> None:
    """A cast at each call would cost more than a small batch saves."""
    model = small_model(name).requires_grad_(False)
    with Casts(model) as casts:
        sampled(model, name, "bfloat16", batch_size=2)
    assert set(casts.count.values()) <= {0, 1}
    assert 1 in casts.count.values()
    assert not any(weight.requires_grad for weight in model.parameters())


def test_weights_created_in_inference_mode_work() -> None:
    with torch.inference_mode():
        model = small_model("fm")
    assert sampled(model, "fm", "bfloat16").isfinite().all()


@pytest.mark.parametrize(
    ("cpu", "native"),
    [
        ({"architecture": "x86_64", "avx2": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, True),
        ({"architecture": "aarch64", "neon": True, "bf16": True, "sve_max_length": 256}, True),
    ],
    ids=["AVX2", "AVX512_BF16", "ARM"],
)
def test_emulated_bfloat16_warns_once(
    cpu: dict[str, object], native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In training and in sampling."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu)
    model = small_model("fm")

    def train() -> None:
        data = Captioned(InMemory(torch.randn(2, *SHAPE)), [0, 1])
        task = GeneratorTask(small_model("fm"), ClassLabels(2, width=8), data)
        Trainer(task, TrainConfig(steps=1, batch_size=2, precision="bfloat16", device="cpu"), tmp_path)

    for use in (train, lambda: sampled(model, "fm", "bfloat16")):
        warn_if_emulated.cache_clear()
        for _ in range(2):
            use()
        assert capsys.readouterr().err.count("bfloat16") == (0 if native else 1)
    sampled(model, "fm", "float32")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("before", ["highest", "medium"])
def test_tf32_is_set_during_sampling_only(before: str) -> None:
    model, seen = small_model("fm"), set()
    note = lambda _: seen.add(torch.get_float32_matmul_precision())  # noqa: E731
    torch.set_float32_matmul_precision(before)
    try:
        tm.generate(model, SHAPE, [0], condition(1), steps=1, callback=note, precision="tf32")
        assert torch.get_float32_matmul_precision() == before
        with pytest.raises(KeyError), matmul_precision("tf32", CPU):
            raise KeyError
        assert torch.get_float32_matmul_precision() == before
        tm.generate(model, SHAPE, [0], condition(1), steps=1, callback=note)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == {"high", before}, "float32 keeps PyTorch's setting"
