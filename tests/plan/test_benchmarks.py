"""FLOPs that benchmarks count on a CPU equal those of a plan."""

from collections.abc import Callable
from types import ModuleType

import torch

import tmatch as tm
from tmatch.plan.training import flops as planned


def test_flops_on_a_cpu_equal_those_of_a_plan(
    benchmark: Callable[[str], ModuleType],
) -> None:
    def model() -> tm.TransitionMatching:
        return tm.build("fm", tm.DiT(8, 32, 2, 4, condition_width=16), 8)

    rng, text = tm.RandomStreams(range(3)), torch.randn(3, 5, 16)
    condition = tm.Condition(text, torch.ones(3, 5, dtype=torch.bool))
    here = model()
    counted = benchmark("flops").flops(lambda: here.loss(rng.normal(4, 4, 8), rng, condition).mean().backward())
    with torch.device("meta"):
        there = model()
    assert counted == sum(planned(there, (4, 4, 8), (5, 16), 3).values())
