import json
import resource
from dataclasses import replace
from typing import Any

import pytest
import torch

import tmatch as tm
from tmatch.generation.config import SamplingConfig
from tmatch.plan import DEVICES, Accelerator, Plan, Utilisation, find_device, plan, render, sampling_cost, to_json
from tmatch.plan.training import flops, parameters

SHAPE, TEXT = (4, 4, 16), (5, 8)


def model(name: str = "dtm") -> tm.Model:
    with torch.device("meta"):
        return tm.build(name, tm.DiT(16, 64, 2, 4, 8), 16, tm.HeadConfig(width=64, depth=1))


@pytest.fixture(scope="module")
def small() -> Plan:
    return plan(model(), SHAPE, 64, "H100 SXM", 4, 1000, text=TEXT, gradient_accumulation_steps=2)


@pytest.mark.parametrize("name", ["H100 SXM", "h100-sxm", "H100SXM"])
def test_device_names_ignore_case_and_spaces(name: str) -> None:
    assert find_device(name) is DEVICES["H100 SXM"]


def test_lower_precision_is_not_slower() -> None:
    for device in DEVICES.values():
        assert device.bfloat16 > device.tf32 >= device.float32


def test_the_sizes_of_the_paper_allocate_nothing() -> None:
    with torch.device("meta"):
        dit = tm.build("dtm", tm.DiT(16, 2048, 24, 16, 4096), 16, tm.HeadConfig(width=1024))
        llama = tm.build("fhtm-3", tm.Llama(16, 2048, 34, 16, 4096), 16, tm.HeadConfig(width=1024))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for whole in (dit, llama):
        assert parameters(whole)["backbone"] == pytest.approx(1.7e9, rel=0.05)
        assert parameters(whole)["head"] == pytest.approx(40e6, rel=0.05)
    forward_and_backward = flops(dit, (16, 16, 16), (128, 4096), 32)
    # 6 per weight and token, except attention, and keys and values of the text, which has half the tokens
    assert sum(forward_and_backward.values()) == pytest.approx(6 * 1.7e9 * 256 * 32, rel=0.1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB; one copy takes 6,600,000


def test_twice_the_gpus_need_half_the_days(small: Plan) -> None:
    more = replace(small, gpus=8)
    assert more.days == pytest.approx(small.days / 2)
    assert more.gpu_hours == pytest.approx(small.gpu_hours)
    assert more.images_per_second == pytest.approx(2 * small.images_per_second)
    assert small.tokens_per_second == pytest.approx(16 * small.images_per_second)


def test_a_step_is_bound_by_compute_or_by_bandwidth(small: Plan) -> None:
    fast = replace(small.device, bandwidth=1e30)
    compute_bound = replace(small, device=fast, utilisation=Utilisation(training=0.5))
    assert compute_bound.seconds_per_step == pytest.approx(sum(small.flops.values()) / (4 * 989.4e12 * 0.5), rel=1e-6)
    slow = replace(small, device=replace(small.device, bandwidth=1e9))
    assert slow.seconds_per_step == pytest.approx(2 * 2 * 2 * sum(small.parameters.values()) / 1e9)


def test_a_batch_is_computed_in_micro_batches(small: Plan) -> None:
    own = Accelerator("mine", 1e15, 5e14, 1e14, DEVICES["L40S"].memory, 1e12)
    whole = plan(model(), SHAPE, 64, own, 4, 1000, text=TEXT, sampling=SamplingConfig(steps=1))
    assert (small.gradient_accumulation_steps, small.micro_batch) == (2, 8)
    assert (whole.gradient_accumulation_steps, whole.micro_batch) == (1, 16)
    assert sum(whole.flops.values()) == pytest.approx(sum(small.flops.values()), rel=0.01)
    assert whole.activations[0].kept == pytest.approx(2 * small.activations[0].kept, rel=0.02)


def test_a_plan_that_fits_has_memory_for_its_micro_batch(small: Plan) -> None:
    for memory in small.memory.values():
        assert small.fits(memory) == (small.largest_micro_batch(memory) >= small.micro_batch)
    tiny = replace(small, device=replace(small.device, memory=1_000_000))
    assert not any(tiny.fits(memory) for memory in tiny.memory.values())


def test_a_backbone_without_checkpointing() -> None:
    with torch.device("meta"):
        model = tm.build("dtm", tm.MLP((2, 2), 16), 16, tm.HeadConfig(width=64, depth=1))
    found = plan(model, (2, 2, 16), 8, "RTX 4090", 1, 10, sampling=SamplingConfig(steps=2, head_steps=1))
    assert found.activations[1] is None
    assert list(found.memory) == ["DDP", "FSDP2"]
    assert render(found)


def test_autoregressive_sampling_is_bound_by_bandwidth(small: Plan) -> None:
    config = SamplingConfig(steps=None, head_steps=1)
    found = replace(small, sampling=sampling_cost(model("artm-2"), SHAPE, TEXT, config))
    _, _, tokens, *_ = found.sampling.calls
    reading = tokens.count * 2 * tokens.each.weights / found.device.bandwidth
    assert tokens.count == 2 * 15
    assert found.sampling_seconds("backbone") >= reading > tokens.count * tokens.each.flops / (0.4 * 989.4e12)


def test_a_plan_renders_and_serializes(small: Plan) -> None:
    text, data = render(small), json.loads(json.dumps(to_json(small)))
    for word in ("backbone", "FSDP2, checkpointing", "GPU-hours"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120
    assert data["gpu_hours"] == small.gpu_hours
    assert data["memory_per_rank"]["DDP"]["total"] == small.memory["DDP"].total
    assert data["sampling"]["evaluations"] == {"backbone": 32, "head": 128, "other": 0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_accumulation_steps": 3}, "A batch of 8 cannot be divided into 12 parts"),
        ({"precision": "int8"}, "int8"),
        ({"device": "H10"}, "no device 'H10'; choose from H100 SXM"),
        ({"gpus": 0}, "The number of GPUs"),
        ({"replicas": 3}, "4 GPUs are not divisible into 3 replicas"),
    ],
)
def test_bad_plans_raise(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(model(), SHAPE, **{"batch": 8, "device": "H100 SXM", "gpus": 4, "steps": 10, "text": TEXT, **options})


def test_real_weights_and_fractions_above_one_raise() -> None:
    with pytest.raises(ValueError, match="on the meta device"):
        plan(tm.build("dtm", tm.DiT(16, 64, 2, 4), 16), SHAPE, 64, "H100 SXM", 4, 10)
    with pytest.raises(ValueError, match="head is a fraction"):
        Utilisation(head=1.5)
