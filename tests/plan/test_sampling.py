import pytest
import torch
from laws import CODES, condition, fresh_model, shape_of, small_model
from torch.utils.flop_counter import FlopCounterMode

import tmatch as tm
from tmatch.plan import Draw, sampling
from tmatch.plan.gpu import GPUSimulationMode
from tmatch.plan.training import condition_of
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


@pytest.mark.parametrize(("name", "steps"), [(name, steps_of(name)) for name in ROWS])
def test_evaluations_are_those_of_generation(name: str, steps: int | None) -> None:
    found = sampling(meta(name), shape_of(name), TEXT, Draw(steps, head_steps=3))
    params = guided(condition(1, seed=9), 3)
    real = tm.generate(small_model(name), shape_of(name), [0], condition(1), steps=steps, params=params).evaluations
    assert (found.evaluations("backbone"), found.evaluations("head")) == (real.backbone, real.head)


@pytest.mark.parametrize("name", ["dtm-mean", "artm-2", "fhtm-2", "mar"])
def test_flops_are_those_of_the_whole_sampler(name: str) -> None:
    """Within half a token of a cache."""
    model, shape = meta(name), shape_of(name)
    found = sampling(model, shape, TEXT, Draw(steps_of(name), head_steps=2, images=2))
    with FlopCounterMode(display=False) as counter, GPUSimulationMode():
        params = guided(condition_of(TEXT, 1), 2)
        tm.generate(model, shape, range(2), condition_of(TEXT, 2), steps=steps_of(name), params=params)
    assert sum(found.flops(part) for part in PARTS) == pytest.approx(counter.get_total_flops(), rel=0.005)


@pytest.mark.parametrize("name", ["dtm", "artm-2"])
def test_guidance_costs_what_a_second_image_does(name: str) -> None:
    steps = steps_of(name)
    both, pair = (
        sampling(meta(name), shape_of(name), TEXT, Draw(steps, guided=guided, images=images))
        for guided, images in ((True, 1), (False, 2))
    )
    assert [both.flops(part) for part in PARTS] == [pair.flops(part) for part in PARTS]


def test_a_call_reads_the_weights_it_needs() -> None:
    """The head's velocity reads nothing of what was prepared, and together they read every weight once."""
    model = meta("dtm")
    backbone, prepared, head = sampling(model, shape_of("dtm"), TEXT, Draw(1)).calls
    network = model.kernel.head
    first = [network.h_in, network.h_modulations, network.t_in]
    assert prepared.each.weights == sum(p.numel() for part in first for p in part.parameters())
    assert prepared.each.weights + head.each.weights == sum(p.numel() for p in network.parameters())
    assert backbone.each.weights == sum(p.numel() for p in model.kernel.backbone.parameters())


def test_a_llama_decodes_from_its_cache_too() -> None:
    with torch.device("meta"):
        model = tm.build("ar-discrete", tm.Llama(24, 24, 2, 2, 8), 4, codebook_size=CODES)
    found = sampling(model, (2, 3, 1), TEXT)
    assert found.evaluations("backbone") == 6
    assert found.calls[0].evaluations is False  # the text, read once


def test_masked_kernels_take_their_iterations() -> None:
    found = sampling(meta("mar"), shape_of("mar"), TEXT, Draw(head_steps=2, iterations=3))
    assert (found.evaluations("backbone"), found.evaluations("head")) == (3, 6)


def test_the_networks_are_themselves_again() -> None:
    model = meta("artm-2")
    sampling(model, shape_of("artm-2"), TEXT)
    assert not {"forward", "init_cache", "prepare"} & (
        vars(model.kernel.backbone).keys() | vars(model.kernel.head).keys()
    )


def test_guidance_without_a_text_is_refused() -> None:
    with torch.device("meta"):
        model = fresh_model("dtm", condition_width=None)
    with pytest.raises(ValueError, match=r"plan with Draw\(guided=False\)"):
        sampling(model, shape_of("dtm"), None)
    assert sampling(model, shape_of("dtm"), None, Draw(2, guided=False)).evaluations("backbone") == 2
