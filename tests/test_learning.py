"""The per-token limit in training: independent tokens lose the dependence; steps or a head patch restore it."""

import importlib.util
from pathlib import Path

import pytest
import torch

from tmatch import RandomStreams
from tmatch.data import TOYS

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):  # noqa: ANN201
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("per_token_limit", EXAMPLES / "per_token_limit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dtm_loses_and_regains_the_dependence_between_tokens(example) -> None:  # noqa: ANN001
    target = TOYS["corners"](RandomStreams(range(3000)))
    by_token, by_patch = (example.train(patch, iterations=500) for patch in (None, (2,)))

    one_step = example.points(by_token, 1, 3000)
    assert abs(example.correlation(one_step)) < 0.1, "one step: the coordinates are independent"
    assert (one_step.std(0) - target.std(0)).abs().max() < 0.2, "though each marginal is right"

    correlations = [example.correlation(example.points(by_token, steps, 3000)) for steps in (1, 2, 16)]
    assert correlations == sorted(correlations)
    assert correlations[-1] > 0.85, "more steps restore the dependence"
    assert example.correlation(example.points(by_patch, 1, 3000)) > 0.85, "so does a head patch over both tokens"


def test_one_step_loses_the_joint_distribution(example) -> None:  # noqa: ANN001
    """One step of the token-by-token model fills the two corners that the data leaves empty."""
    model = example.train(None, iterations=500)

    def wrong_corner(x: torch.Tensor) -> float:
        return (x.prod(1) < 0).float().mean().item()

    assert wrong_corner(TOYS["corners"](RandomStreams(range(3000)))) < 0.01
    assert wrong_corner(example.points(model, 1, 3000)) == pytest.approx(0.5, abs=0.08)
    assert wrong_corner(example.points(model, 16, 3000)) < 0.06
