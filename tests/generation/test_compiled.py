"""Compiled sampling."""

from collections.abc import Callable

import pytest
from laws import SMALL_HEAD, awake, condition
from torch import nn

import tmatch as tm
from tmatch.generation import compile_for_sampling

ROWS = pytest.mark.parametrize(
    ("name", "backbone"),
    [
        ("fhtm-2", lambda width: tm.Llama(4, width=16, depth=1, heads=2, condition_width=width)),
        ("artm-2", lambda width: tm.DiT(4, width=16, depth=1, heads=2, condition_width=width)),
        ("dtm-mean", lambda width: tm.DiT(4, width=16, depth=1, heads=2, condition_width=width)),
    ],
)


def test_a_compiled_model_gives_the_same_samples() -> None:
    model = awake(tm.build("fhtm-2", tm.Llama(4, width=16, depth=1, heads=2), 4, SMALL_HEAD))
    plain = tm.generate(model, (1, 2, 4), range(2), params=tm.SamplingParams(tm.Euler(1)))
    compile_for_sampling(model)
    again = tm.generate(model, (1, 2, 4), range(2), params=tm.SamplingParams(tm.Euler(1)))
    assert (again.x - plain.x).abs().max() < 1e-4  # 1.5e-5 was seen, in samples of size 4


@ROWS
def test_tracing_gives_the_same_samples(name: str, backbone: Callable[[int], nn.Module]) -> None:
    model = awake(tm.build(name, backbone(8), 4, SMALL_HEAD))
    guidance = tm.ClassifierFreeGuidance(condition(1, length=1, seed=99), 2.0)

    def sampled() -> tm.Generation:  # the last batch is a smaller one
        params = tm.SamplingParams(tm.Midpoint(1), guidance)
        return tm.generate(model, (1, 2, 4), range(3), condition(3), params=params, batch_size=2)

    plain = sampled()
    compile_for_sampling(model, backend="eager")
    again = sampled()
    assert (again.x - plain.x).abs().max() < 1e-5
    assert again.evaluations == plain.evaluations
