from typing import Literal

import pytest
import torch
from laws import CODES, condition, fresh_model, shape_of, small_model
from torch.utils.flop_counter import FlopCounterMode

import tmatch as tm
from tmatch.generation.config import SamplingConfig
from tmatch.plan import sampling_cost
from tmatch.plan.gpu import GPUSimulationMode
from tmatch.plan.training import condition_of
from tmatch.sampler import build_sampler
from tmatch.variants import VARIANTS

TEXT = (3, 8)
ROWS = ["fm", "dtm-mean", "ddpm", "artm-2", "fhtm-2", "martm-2", "ar-discrete", "mar-discrete"]
PARTS = ("backbone", "head", "other")


def meta(name: str) -> tm.Model:
    with torch.device("meta"):
        return fresh_model(name)


def steps_of(name: str) -> int | None:
    """Two steps, or the row's own where it takes no others."""
    return None if isinstance(VARIANTS[name].parametrization, tm.NextState) else 2


def guided(text: tm.Condition, head_steps: int) -> tm.SamplingParams:
    return tm.SamplingParams(tm.Euler(head_steps), tm.ClassifierFreeGuidance(text))


@pytest.mark.parametrize(
    ("name", "steps", "sampler"),
    [*((name, steps_of(name), "default") for name in ROWS), ("fm", 10, "restart"), ("fm", 2, "glass")],
)
def test_evaluations_equal_those_of_generate(name: str, steps: int | None, sampler: str) -> None:
    config = SamplingConfig(steps=steps, sampler=sampler, head_steps=3)
    found = sampling_cost(meta(name), shape_of(name), TEXT, config)
    params = guided(condition(1, seed=9), 3)
    real = tm.generate(
        small_model(name), shape_of(name), [0], condition(1), steps=steps, params=params, sampler=build_sampler(sampler)
    ).evaluations
    assert (found.evaluations("backbone"), found.evaluations("head")) == (real.backbone, real.head)


@pytest.mark.parametrize("name", ["dtm-mean", "artm-2", "fhtm-2", "mar"])
def test_flops_equal_those_of_generate(name: str) -> None:
    """Up to half a token in the length of the cache."""
    model, shape = meta(name), shape_of(name)
    found = sampling_cost(model, shape, TEXT, SamplingConfig(steps=steps_of(name), head_steps=2), images=2)
    with FlopCounterMode(display=False) as counter, GPUSimulationMode():
        params = guided(condition_of(TEXT, 1), 2)
        tm.generate(model, shape, range(2), condition_of(TEXT, 2), steps=steps_of(name), params=params)
    assert sum(found.flops(part) for part in PARTS) == pytest.approx(counter.get_total_flops(), rel=0.005)


@pytest.mark.parametrize("over", ["tokens", "time"])
@pytest.mark.parametrize("name", ["dtm-mean", "artm-2", "fhtm-2", "mar"])
def test_scheduled_head_steps_and_guidance_cost_what_they_take(name: str, over: Literal["tokens", "time"]) -> None:
    model, shape, steps = meta(name), shape_of(name), steps_of(name)
    config = SamplingConfig(
        steps=steps, head_steps=7, last_head_steps=2, head_schedule=over, guidance=3.0, guidance_interval=(0.3, 1.0)
    )
    found = sampling_cost(model, shape, TEXT, config)
    with FlopCounterMode(display=False) as counter, GPUSimulationMode():
        params = config.build(condition_of(TEXT, 1))
        real = tm.generate(model, shape, [0], condition_of(TEXT, 1), steps=steps, params=params).evaluations
    assert (found.evaluations("backbone"), found.evaluations("head")) == (real.backbone, real.head)
    assert sum(found.flops(part) for part in PARTS) == pytest.approx(counter.get_total_flops(), rel=0.005)


@pytest.mark.parametrize("name", ["dtm", "artm-2"])
def test_guidance_costs_as_much_as_a_second_image(name: str) -> None:
    steps = steps_of(name)
    both, pair = (
        sampling_cost(meta(name), shape_of(name), TEXT, SamplingConfig(steps=steps, guidance=scale), images)
        for scale, images in ((2.0, 1), (1.0, 2))
    )
    assert [both.flops(part) for part in PARTS] == [pair.flops(part) for part in PARTS]


def test_each_call_reads_only_its_weights() -> None:
    """`prepare` and `forward` of the head read disjoint weights, and together all of them."""
    model = meta("dtm")
    backbone, prepared, head = sampling_cost(model, shape_of("dtm"), TEXT, SamplingConfig(steps=1)).calls
    network = model.kernel.head
    first = [network.h_in, network.h_modulations, network.t_in]
    assert prepared.each.weights == sum(p.numel() for part in first for p in part.parameters())
    assert prepared.each.weights + head.each.weights == sum(p.numel() for p in network.parameters())
    assert backbone.each.weights == sum(p.numel() for p in model.kernel.backbone.parameters())


def test_a_llama_decodes_with_its_cache() -> None:
    with torch.device("meta"):
        model = tm.build("ar-discrete", tm.Llama(24, 24, 2, 2, 8), 4, codebook_size=CODES)
    found = sampling_cost(model, (2, 3, 1), TEXT, SamplingConfig(steps=None))
    assert found.evaluations("backbone") == 6
    assert found.calls[0].evaluations is False  # the text


def test_masked_kernels_use_the_iterations() -> None:
    found = sampling_cost(meta("mar"), shape_of("mar"), TEXT, SamplingConfig(steps=None, head_steps=2, iterations=3))
    assert (found.evaluations("backbone"), found.evaluations("head")) == (3, 6)


def test_a_dry_run_restores_the_networks() -> None:
    model = meta("artm-2")
    sampling_cost(model, shape_of("artm-2"), TEXT, SamplingConfig(steps=None))
    assert not {"forward", "init_cache", "prepare"} & (
        vars(model.kernel.backbone).keys() | vars(model.kernel.head).keys()
    )


def test_a_model_without_a_condition_is_sampled_without_guidance() -> None:
    with torch.device("meta"):
        model = fresh_model("dtm", condition_width=None)
    found = sampling_cost(model, shape_of("dtm"), None, SamplingConfig(steps=2, guidance=2.0))
    assert (found.guided, found.evaluations("backbone")) == (False, 2)
