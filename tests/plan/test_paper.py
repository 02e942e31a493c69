"""The paper's times on an H100, from FLOPs and a utilisation for each network."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "plan.md").read_text()
RESULT = json.loads((ROOT / "docs" / "results" / "plan_paper.json").read_text())


@pytest.fixture(scope="module")
def paper(benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark("plan_paper")


def test_the_papers_table_is_two_numbers(paper: ModuleType) -> None:
    """Every cell is T (84 + 3.5 S) ms, to the digit that is printed."""
    for head_steps, row in paper.TABLE.items():
        for steps, printed in zip(paper.STEPS, row, strict=True):
            assert paper.formula(steps, head_steps) == pytest.approx(printed, abs=0.0501)


def test_one_utilisation_for_each_network_makes_the_table(paper: ModuleType) -> None:
    each = paper.costs(guided=True)
    for head_steps in paper.TABLE:
        for steps in paper.STEPS:
            ours = paper.predicted(each, steps, head_steps, paper.FITTED)
            assert ours == pytest.approx(paper.formula(steps, head_steps), rel=0.25)
    # what was written down is what is measured
    for name, cost in each.items():
        assert cost.flops / 1e9 == pytest.approx(RESULT["gflops"]["guided"][name])
        assert cost.weights == RESULT["weights_read"][name]


def test_no_single_utilisation_does() -> None:
    """The ratio of the two networks' FLOPs is too far from that of their times for 25% either way."""
    ratios = RESULT["ratio_of_backbone_to_head"]
    for kind in ("flops", "flops_if_the_head_prepared_at_every_step", "weights"):
        assert ratios[kind] / ratios["paper"] > 1.25 / 0.75


def test_the_document_has_the_figures_of_the_command(paper: ModuleType) -> None:
    for table in paper.tables(RESULT).split("\n\n"):
        assert table in DOCUMENT
    training, ratios = RESULT["training"], RESULT["ratio_of_backbone_to_head"]
    for figure in (
        f"{RESULT['largest_error']:.0%} off",
        f"{RESULT['fitted_utilisation']['backbone']:.1%} of the peak for the backbone",
        f"{RESULT['fitted_utilisation']['head']:.2%} for the head",
        f"{ratios['flops']:.0f} to 1",
        f"{ratios['flops_if_the_head_prepared_at_every_step']:.0f} to 1",
        f"{RESULT['seconds_16_x_4_at_default_utilisation']:.3f} s",
        f"{RESULT['seconds_fm_128_at_default_utilisation']:.2f} s",
        f"{sum(training['flops_a_step'].values()) / 2048 / 1e12:.2f} TFLOPs per image",
        f"{training['gpu_hours']:,.0f} GPU-hours",
        f"{training['days']:.2f} days",
    ):
        assert figure in DOCUMENT, figure
