import pytest
import torch
from laws import assert_moments
from torch import nn

import tmatch as tm
from tmatch.eval import ExactMean, GaussianMixture


def test_the_papers_restarts_cost_2400_evaluations() -> None:
    model = tm.build("fm", tm.MLP((1,), 2, width=4, depth=1), 2)
    assert tm.Restart(model).transitions(1000) == 2400
    sampler = tm.variant("fm-restart").sampler(tm.variant("fm-restart").build(tm.MLP((1,), 2, width=4, depth=1), 2))
    assert tm.generate(sampler, (1, 2), [0]).evaluations.backbone == 2400


def test_the_itinerary_goes_back_and_comes_again() -> None:
    model = tm.build("fm", tm.MLP((1,), 2, width=4, depth=1), 2)
    restart = tm.Restart(model, ((0.5, 0.25, 2),))
    moves = [(float(t), float(u)) for t, u in restart.itinerary(model.grid(4))]
    again = [(0.5, 0.25), (0.25, 0.5)]
    assert moves == [(0, 0.25), (0.25, 0.5), *again, *again, (0.5, 0.75), (0.75, 1)]


def test_no_restarts_is_algorithm_2() -> None:
    model = tm.build("fm", tm.MLP((1,), 2, width=8, depth=1), 2)
    plain, none = (s.sample((1, 2), tm.Noise(range(3)), steps=5) for s in (model, tm.Restart(model, ())))
    assert torch.equal(plain, none)


def test_restarts_keep_the_law_of_an_exact_model() -> None:
    mean, covariance = torch.tensor([0.5]).double(), torch.tensor([[0.3]]).double()
    exact = ExactMean(GaussianMixture.gaussian(mean, covariance), tm.LinearProcess(), tm.Difference())
    model = tm.TransitionMatching(exact.process, tm.Difference(), tm.MeanKernel(exact, nn.Identity()), tm.Continuous())
    noise = tm.Noise(range(20_000), dtype=torch.float64)
    assert_moments(tm.Restart(model).sample((1, 1), noise, steps=500).flatten(1), mean, covariance)


def test_too_few_steps_to_restart_are_refused() -> None:
    model = tm.build("fm", tm.MLP((1,), 2, width=4, depth=1), 2)
    with pytest.raises(ValueError, match=r"2 steps are too few to restart from t = 0\.6 to t = 0\.4"):
        tm.Restart(model).sample((1, 2), tm.Noise([0]), steps=2)
