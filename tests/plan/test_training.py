from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from laws import CODES, shape_of
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import tmatch as tm
from tmatch.plan import gpu
from tmatch.plan.training import activations, condition_of, flops, loss_of, parameters
from tmatch.variants import VARIANTS

TEXT = (3, 8)
KERNELS = pytest.mark.parametrize("name", ["dtm-mean", "artm-2", "martm-2", "ar-discrete"])
CONTINUOUS = pytest.mark.parametrize("name", ["dtm", "fhtm-2"])
GRID = (8, 8, 4)  # fused attention rounds up to 32 tokens


def build(name: str, **settings: bool) -> tm.Model:
    row = VARIANTS[name]
    backbone = tm.DiT(24 if row.embeds else 4, 24, 2, 2, 8, timed=row.timed, **settings)
    return tm.build(name, backbone, 4, tm.HeadConfig(width=24, depth=2), CODES if row.discrete else None)


def meta(name: str, **settings: bool) -> tm.Model:
    with torch.device("meta"):
        return build(name, **settings)


class Lines(nn.Module):
    """Two linear layers."""

    width = 32

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(channels, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor, t: Tensor, condition: tm.Condition | None = None) -> Tensor:
        return self.second(self.first(x))


def test_flops_of_linear_layers_match_their_formula() -> None:
    """2 per weight and token, and as much for each gradient; the data needs none."""
    batch, tokens, channels, width = 5, 6, 4, 32
    with torch.device("meta"):
        model = tm.build("fm", Lines(channels), channels)
    found = flops(model, (2, 3, channels), None, batch)
    each = 2 * batch * tokens
    assert found["backbone"] == each * (2 * channels * width + 3 * width * width)
    assert found["other"] == each * 3 * width * channels
    assert found["head"] == 0
    assert flops(model, (2, 3, channels), None, 2 * batch) == {part: 2 * count for part, count in found.items()}


def test_flops_are_linear_in_the_batch() -> None:
    """Except for the position embedding, which is computed once per batch."""
    model = meta("fhtm-2")
    one, two = (sum(flops(model, (2, 3, 4), TEXT, batch).values()) for batch in (100, 200))
    assert two == pytest.approx(2 * one, rel=0.01)


@KERNELS
def test_the_networks_add_up(name: str) -> None:
    model = meta(name)
    assert sum(parameters(model).values()) == sum(p.numel() for p in model.parameters())
    with FlopCounterMode(display=False) as counter:
        with gpu.GPUSimulationMode():
            loss = loss_of(model, shape_of(name), TEXT, 2)
        loss.backward()
    assert sum(flops(model, shape_of(name), TEXT, 2).values()) == counter.get_total_flops()


def test_flops_of_a_network_do_not_depend_on_the_kernel() -> None:
    """Both kernels have the same backbone and head, and the readout is one linear layer."""
    plain, more = flops(meta("dtm"), (2, 3, 4), TEXT, 2), flops(meta("dtm-mean"), (2, 3, 4), TEXT, 2)
    assert more == {**plain, "other": 3 * 2 * 2 * 6 * 24 * 4}
    bare = flops(meta("fm"), (2, 3, 4), TEXT, 2)
    assert bare["backbone"] == plain["backbone"]


def test_flops_on_a_cpu_equal_those_of_a_plan(benchmark: Callable[[str], ModuleType]) -> None:
    rng, real = tm.RandomStreams(range(3)), build("fm")
    text = tm.Condition.dense(torch.zeros(3, *TEXT))
    counted = benchmark("flops").flops(lambda: real.loss(rng.normal(4, 4, 4), rng, text).mean().backward())
    assert counted == sum(flops(meta("fm"), (4, 4, 4), TEXT, 3).values())


def test_checkpointing_adds_a_forward_pass_of_the_blocks() -> None:
    plain, twice = (flops(meta("dtm", checkpointing=on), (2, 3, 4), TEXT, 2) for on in (False, True))
    assert twice["head"] == plain["head"]
    assert 1.2 < twice["backbone"] / plain["backbone"] < 4 / 3


def saved_on_a_cpu(name: str, batch: int, autocast: bool) -> int:
    """Return the bytes that autograd saves for a real loss, without parameters."""
    model, saved, rng = build(name), {}, tm.RandomStreams(range(batch))
    own = {id(p.untyped_storage()) for p in model.parameters()}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if id(storage) not in own:
            saved[id(storage)] = storage
        return x

    text = tm.Condition.dense(rng.normal(*TEXT))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), saved_tensors_hooks(pack, lambda x: x):
        loss = model.loss(rng.normal(*GRID), rng, text).mean()
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in saved.values())


@CONTINUOUS
def test_kept_activations_are_what_autograd_saves(name: str) -> None:
    kept = activations(meta(name), GRID, TEXT, 4, "float32", checkpoint=False).kept
    assert kept == pytest.approx(saved_on_a_cpu(name, 4, autocast=False), rel=0.005)


@CONTINUOUS
def test_bfloat16_activations_are_those_of_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where norms stay in bfloat16."""
    monkeypatch.setattr(gpu, "RAISED", set())
    used = activations(meta(name), GRID, TEXT, 4, "bfloat16", checkpoint=False)
    assert used.kept + used.copies == pytest.approx(saved_on_a_cpu(name, 4, autocast=True), rel=0.05)


def test_checkpointing_keeps_less() -> None:
    model = meta("dtm")
    plain, less = (activations(model, (2, 3, 4), TEXT, 64, "bfloat16", checkpoint=on) for on in (False, True))
    assert less.kept < plain.kept
    assert less.peak < plain.peak
    assert all(used.peak >= used.kept for used in (plain, less))
    assert plain.copies == 2 * sum(
        p.numel() for part in model.modules() if isinstance(part, nn.Linear) for p in part.parameters()
    )


def test_activations_are_linear_in_the_batch() -> None:
    one, two = (activations(meta("dtm"), (2, 3, 4), TEXT, n, "float32", checkpoint=False).kept for n in (64, 128))
    assert two == pytest.approx(2 * one, rel=0.01)


def test_measurements_leave_the_model_unchanged() -> None:
    model = meta("dtm", checkpointing=True)
    flops(model, (2, 3, 4), TEXT, 2)
    activations(model, (2, 3, 4), TEXT, 2, "bfloat16", checkpoint=False)
    assert model.kernel.backbone.checkpointing is True
    assert all(p.grad is None for p in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert condition_of(None, 2) is None
