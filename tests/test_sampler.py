import pytest
import torch
from exact import ExactMean, GaussianMixture
from laws import SHAPE, assert_moments, condition, small_model
from torch import nn

import tmatch as tm

MEAN, COVARIANCE = torch.tensor([0.5]).double(), torch.tensor([[0.3]]).double()


def steps(sampler: tm.Sampler, steps: int) -> list[tuple[float, float]]:
    return [(float(t), float(u)) for t, u in sampler.steps(tm.Continuous().grid(steps))]


def exact_model(process: tm.Process, y: tm.Parametrization) -> tm.TransitionMatching:
    exact = ExactMean(GaussianMixture.gaussian(MEAN, COVARIANCE), process, y)
    return tm.TransitionMatching(process, y, tm.MeanKernel(exact, nn.Identity()), tm.Continuous())


def test_the_default_visits_each_time_once() -> None:
    assert steps(tm.Sampler(), 2) == [(0, 0.5), (0.5, 1)]


def test_restart_returns_to_an_earlier_time() -> None:
    again = [(0.5, 0.25), (0.25, 0.5)]
    expected = [(0, 0.25), (0.25, 0.5), *again, *again, (0.5, 0.75), (0.75, 1)]
    assert steps(tm.RestartSampler(((0.5, 0.25, 2),)), 4) == expected
    assert steps(tm.RestartSampler(()), 4) == steps(tm.Sampler(), 4)


def test_the_restarts_of_the_paper_take_2400_transitions() -> None:
    model = tm.build("fm", tm.MLP((1,), 2, width=4, depth=1), 2)
    assert model.transitions(1000, tm.RestartSampler()) == 2400
    assert tm.generate(model, (1, 2), [0], steps=10, sampler=tm.RestartSampler()).evaluations.backbone == 24


@pytest.mark.parametrize(
    ("sampler", "model"),
    [
        (tm.RestartSampler(), exact_model(tm.LinearProcess(), tm.Difference())),
        (tm.DDIMSampler(0.5), exact_model(tm.LinearProcess(), tm.Difference())),
        (tm.DDIMSampler(), exact_model(tm.DiffusionProcess(tm.VariancePreserving()), tm.NoiseState())),
        (tm.DDIMSampler(0.5), exact_model(tm.DiffusionProcess(tm.VariancePreserving()), tm.CleanState())),
    ],
    ids=["restart", "ddim-0.5 on fm", "ddim on ddpm", "ddim-0.5 on x-prediction"],
)
def test_samplers_keep_the_moments_of_an_exact_model(sampler: tm.Sampler, model: tm.TransitionMatching) -> None:
    rng = tm.RandomStreams(range(10_000), dtype=torch.float64)
    assert_moments(model.sample((1, 1), rng, steps=400, sampler=sampler).flatten(1), MEAN, COVARIANCE)


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
def test_ddim_takes_the_step_of_song_et_al(eta: float) -> None:
    """Eq. 12: sqrt(abar') x_0 + sqrt(1 - abar' - sigma^2) eps + sigma z, sigma = eta sqrt(beta-tilde)."""
    schedule, n, x, eps = tm.VariancePreserving(), 40_000, 0.7, 0.6

    class Epsilon(nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor, condition: None) -> torch.Tensor:
            return torch.full_like(x, eps)

    kernel = tm.GaussianKernel(Epsilon(), nn.Identity())
    model = tm.TransitionMatching(tm.DiffusionProcess(schedule), tm.NoiseState(), kernel, tm.Continuous())
    t = torch.tensor([0.5, 0.55], dtype=torch.float64)
    start, rng = torch.full((n, 1, 1), x, dtype=torch.float64), tm.RandomStreams(range(n), dtype=torch.float64)
    moved = model.sample((1, 1), rng, steps=t.tolist(), start=start, sampler=tm.DDIMSampler(eta)).flatten()
    abar, abar_next = schedule.alpha(t) ** 2
    variance = eta**2 * (1 - abar_next) / (1 - abar) * (1 - abar / abar_next)
    clean = (x - (1 - abar).sqrt() * eps) / abar.sqrt()
    mean = abar_next.sqrt() * clean + (1 - abar_next - variance).sqrt() * eps
    assert abs(moved.mean() - mean) <= 5 * (variance / n).sqrt() + 1e-9
    assert abs(moved.var() - variance) <= 5 * variance * (2 / n) ** 0.5 + 1e-9


def test_samplers_are_built_from_strings() -> None:
    assert tm.build_sampler("default") == tm.Sampler()
    assert tm.build_sampler("restart") == tm.RestartSampler()
    assert tm.build_sampler("ddim:0.5") == tm.DDIMSampler(0.5)
    for spec, words in {
        "ddmi": "did you mean 'ddim'",
        "default:1": "does not take the arguments '1'",
        "ddim:2": "eta must be in",
        "ddim:x": "are numbers",
    }.items():
        with pytest.raises(ValueError, match=words):
            tm.build_sampler(spec)


def test_invalid_restarts_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"2 steps are too few to restart from t = 0\.6 at 0\.4"):
        steps(tm.RestartSampler(), 2)
    for interval in ((0.4, 0.6, 1), (0.6, 0.4, 0), (1.2, 0.4, 1), (float("nan"), 0.4, 1)):
        with pytest.raises(ValueError, match="early < late"):
            tm.RestartSampler((interval,))


def test_models_of_the_next_state_reject_other_noise() -> None:
    with pytest.raises(ValueError, match="needs the default sampler"):
        small_model("artm-2").sample(SHAPE, tm.RandomStreams([0]), condition(1), sampler=tm.DDIMSampler())
