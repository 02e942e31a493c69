"""The per-token limit in training: independent tokens lose the dependence; steps or a head patch restore it."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from tmatch import RandomStreams
from tmatch.data import TOYS


def test_dtm_loses_and_regains_the_dependence_between_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parent.parent / "examples"
    monkeypatch.setattr(sys, "path", [str(examples), *sys.path])
    example = runpy.run_path(str(examples / "per_token_limit.py"))
    train, points, correlation = (example[name] for name in ("train", "points", "correlation"))
    target = TOYS["corners"](RandomStreams(range(3000)))
    by_token, by_patch = (train(patch, iterations=500) for patch in (None, (2,)))

    def wrong_corner(x: torch.Tensor) -> float:
        return (x.prod(1) < 0).float().mean().item()

    one, two, many = (points(by_token, steps, 3000) for steps in (1, 2, 16))
    assert abs(correlation(one)) < 0.1, "one step: the coordinates are independent"
    assert wrong_corner(one) == pytest.approx(0.5, abs=0.08), "and fill the corners that the data leaves empty"
    assert (one.std(0) - target.std(0)).abs().max() < 0.2, "though each marginal is right"
    assert correlation(one) < correlation(two) < correlation(many)
    assert correlation(many) > 0.85, "more steps restore the dependence"
    assert wrong_corner(target) < 0.01
    assert wrong_corner(many) < 0.06
    assert correlation(points(by_patch, 1, 3000)) > 0.85, "so does a head patch over both tokens"
