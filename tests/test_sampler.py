import pytest
import torch
from laws import assert_moments
from torch import nn

import tmatch as tm
from tmatch.eval import ExactMean, GaussianMixture


def steps(sampler: tm.Sampler, steps: int) -> list[tuple[float, float]]:
    return [(float(t), float(u)) for t, u in sampler.steps(tm.Continuous().grid(steps))]


def test_straight_visits_each_time_once() -> None:
    assert steps(tm.Sampler(), 2) == [(0, 0.5), (0.5, 1)]


def test_restart_goes_back_and_comes_again() -> None:
    again = [(0.5, 0.25), (0.25, 0.5)]
    assert steps(tm.RestartSampler(((0.5, 0.25, 2),)), 4) == [
        (0, 0.25),
        (0.25, 0.5),
        *again,
        *again,
        (0.5, 0.75),
        (0.75, 1),
    ]
    assert steps(tm.RestartSampler(()), 4) == steps(tm.Sampler(), 4)


def test_the_papers_restarts_cost_2400_evaluations() -> None:
    model = tm.build("fm-restart", tm.MLP((1,), 2, width=4, depth=1), 2)
    assert model.transitions() == 2400
    assert tm.generate(model, (1, 2), [0]).evaluations.backbone == 2400


def test_restarts_keep_the_law_of_an_exact_model() -> None:
    mean, covariance = torch.tensor([0.5]).double(), torch.tensor([[0.3]]).double()
    exact = ExactMean(GaussianMixture.gaussian(mean, covariance), tm.LinearProcess(), tm.Difference())
    kernel = tm.MeanKernel(exact, nn.Identity())
    model = tm.TransitionMatching(exact.process, tm.Difference(), kernel, tm.Continuous(), tm.RestartSampler())
    rng = tm.RandomStreams(range(20_000), dtype=torch.float64)
    assert_moments(model.sample((1, 1), rng, steps=500).flatten(1), mean, covariance)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2 steps are too few to go back from t = 0\.6 to 0\.4"):
        steps(tm.RestartSampler(), 2)
    for interval in ((0.4, 0.6, 1), (0.6, 0.4, 0), (1.2, 0.4, 1), (float("nan"), 0.4, 1)):
        with pytest.raises(ValueError, match="from a late time back to an early one"):
            tm.RestartSampler((interval,))
