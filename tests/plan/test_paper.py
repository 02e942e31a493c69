"""The paper's sampling times on an H100, from FLOPs and one utilisation per network."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RESULT = json.loads((ROOT / "docs" / "results" / "plan_paper.json").read_text())


@pytest.fixture(scope="module")
def paper(benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark("plan_paper")


def test_two_numbers_give_the_table_of_the_paper(paper: ModuleType) -> None:
    """Every cell is T (84 + 3.5 S) ms, to the printed digit."""
    for head_steps, row in paper.TABLE.items():
        for steps, printed in zip(paper.STEPS, row, strict=True):
            assert paper.formula(steps, head_steps) == pytest.approx(printed, abs=0.0501)


def test_one_utilisation_per_network_gives_the_table(paper: ModuleType) -> None:
    each = paper.costs(guided=True)
    for head_steps in paper.TABLE:
        for steps in paper.STEPS:
            ours = paper.predicted(each, steps, head_steps, paper.FITTED)
            assert ours == pytest.approx(paper.formula(steps, head_steps), rel=0.25)
    for name, cost in each.items():
        assert cost.flops / 1e9 == pytest.approx(RESULT["gflops"]["guided"][name])
        assert cost.weights == RESULT["weights_read"][name]


def test_a_single_utilisation_does_not() -> None:
    """The FLOPs of the networks have another ratio than their times, beyond 25% either way."""
    ratios = RESULT["ratio_of_backbone_to_head"]
    for kind in ("flops", "flops_if_the_head_prepared_at_every_step", "weights"):
        assert ratios[kind] / ratios["paper"] > 1.25 / 0.75
