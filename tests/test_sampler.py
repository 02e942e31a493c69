import math
from itertools import pairwise

import pytest
import torch
from exact import ExactMean, GaussianMixture, PosteriorKernel
from laws import SHAPE, assert_moments, condition, small_model
from torch import Tensor, nn

import tmatch as tm
from tmatch.kernel import JointKernel, MeanPredictor
from tmatch.solver import SOLVERS
from tmatch.times import GRIDS, build_grid

MEAN, COVARIANCE = torch.tensor([0.5]).double(), torch.tensor([[0.3]]).double()
PAIR = GaussianMixture(
    torch.tensor([0.3, 0.7]).double(),
    torch.tensor([[-1.0, 0.5], [0.6, -0.2]]).double(),
    torch.tensor([[[0.3, 0.2], [0.2, 0.4]], [[0.1, -0.05], [-0.05, 0.2]]]).double(),
)
"""A mixture over two tokens with one channel each, which depend on each other."""
PAIR_MEAN = PAIR.weights @ PAIR.means
PAIR_COVARIANCE = (
    torch.einsum("k,kij->ij", PAIR.weights, PAIR.covariances)
    + torch.einsum("k,ki,kj->ij", PAIR.weights, PAIR.means, PAIR.means)
    - torch.outer(PAIR_MEAN, PAIR_MEAN)
)
SETTINGS = {
    "linear": (tm.LinearProcess(), tm.Difference()),
    "cosine": (tm.GaussianProcess(tm.Cosine()), tm.CleanState()),
    "variance preserving": (tm.DiffusionProcess(tm.VariancePreserving()), tm.NoiseState()),
}
ALL_SETTINGS = pytest.mark.parametrize(("process", "y"), SETTINGS.values(), ids=SETTINGS.keys())


def mean_model(process: tm.Process, y: tm.Parametrization) -> tm.TransitionMatching:
    kernel = tm.MeanKernel(ExactMean(PAIR, process, y), nn.Identity())
    return tm.TransitionMatching(process, y, kernel, tm.Continuous())


def assert_is_pair(x: Tensor) -> None:
    assert_moments(x.flatten(1), PAIR_MEAN, PAIR_COVARIANCE)


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


@ALL_SETTINGS
@pytest.mark.parametrize(
    "sampler", ["overshoot:0", "overshoot:0.3", "overshoot:1", "overshoot:0.9,0.1", "restart:0.7,0.3,2"]
)
@pytest.mark.parametrize("grid", ["uniform", "shifted:3"])
def test_stochastic_samplers_keep_the_marginals_of_an_exact_kernel(
    process: tm.Process, y: tm.Parametrization, sampler: str, grid: str
) -> None:
    model = tm.TransitionMatching(process, y, PosteriorKernel(ExactMean(PAIR, process, y)), tm.Continuous())
    rng = tm.RandomStreams(range(8_000), dtype=torch.float64)
    assert_is_pair(model.sample((2, 1), rng, steps=build_grid(grid, 6), sampler=tm.build_sampler(sampler)))


def test_overshoot_goes_beyond_each_time_and_returns() -> None:
    assert steps(tm.OvershootSampler(0.5), 2) == [(0, 0.75), (0.75, 0.5), (0.5, 1)]
    assert steps(tm.OvershootSampler(1, 0), 2) == [(0, 0.75), (0.75, 0.5), (0.5, 1)]
    assert steps(tm.OvershootSampler(1), 2) == [(0, 1), (1, 0.5), (0.5, 1)]


@pytest.mark.parametrize("name", ["fm", "dtm", "dtm-mean", "ddpm"])
def test_overshoot_by_nothing_is_algorithm_2_to_the_bit(name: str) -> None:
    model, c = small_model(name), condition(3)
    samples = [
        model.sample(SHAPE, tm.RandomStreams(range(3)), c, steps=5, sampler=sampler)
        for sampler in (tm.Sampler(), tm.OvershootSampler(0))
    ]
    assert torch.equal(*samples)


@ALL_SETTINGS
def test_the_sde_keeps_the_marginals_as_steps_grow(process: tm.Process, y: tm.Parametrization) -> None:
    """The error of the covariance halves when the number of steps doubles, down to Monte Carlo error."""
    errors = []
    for count in (10, 20, 40, 250):
        x = mean_model(process, y).sample(
            (2, 1), tm.RandomStreams(range(10_000), dtype=torch.float64), steps=count, sampler=tm.SDESampler()
        )
        errors.append(float((x.flatten(1).T.cov() - PAIR_COVARIANCE).norm()))
    assert errors[1] < 0.75 * errors[0]
    assert errors[2] < 0.75 * errors[1]
    assert errors[3] < 0.04


def test_the_sde_takes_the_step_of_euler_and_maruyama() -> None:
    """X + (v + w/2 score) dt + sqrt(w dt) Z with the score -E[Z | X] / sigma, and the last step is a mean."""
    n, t, dt, scale, power = 40_000, 0.5, 0.1, 0.7, 2.0
    process, x_T, x_t = tm.LinearProcess(), 0.8, 0.3
    z = (x_t - t * x_T) / (1 - t)
    own = tm.SDESampler(scale, power).process(process)
    ends = [torch.full((n, 1, 1), value, dtype=torch.float64) for value in (z, x_T)]
    rng = tm.RandomStreams(range(n), dtype=torch.float64)
    times = [torch.tensor(time, dtype=torch.float64) for time in (t, t + dt, 1.0)]
    moved = own.advance(*ends, times[0], times[1], rng)
    w = scale * (1 - t) ** power
    mean, variance = x_t + dt * (x_T - z - w / 2 * z / (1 - t)), w * dt
    assert abs(moved.mean() - mean) < 5 * (variance / n) ** 0.5
    assert abs(moved.var() - variance) < 5 * variance * (2 / n) ** 0.5
    torch.testing.assert_close(own.advance(*ends, times[0], times[2], rng), ends[1])


@ALL_SETTINGS
def test_solvers_over_t_reach_their_order(process: tm.Process, y: tm.Parametrization) -> None:
    """On the ODE of an exact mean, on an uneven grid; the variance-preserving one turns sharply close to t = 0."""
    missing = 1.2 if isinstance(process.schedule, tm.VariancePreserving) else 0.65
    model = mean_model(process, y)

    def sampled(name: str, count: int) -> Tensor:
        rng = tm.RandomStreams(range(100, 108), dtype=torch.float64)
        return model.sample((2, 1), rng, steps=build_grid("power:1.3", count), sampler=tm.build_sampler(name))

    exact = sampled("rk4", 400)
    for name, solver in SOLVERS.items():
        coarse, fine = [float((sampled(name, count) - exact).norm()) for count in (40, 160)]
        assert fine < 0.5 * coarse, name
        if name not in ("dpm++2m", "unipc"):  # exponential methods are irregular near noise and near data
            assert math.log2(coarse / fine) / 2 > solver.order - missing, name


@ALL_SETTINGS
def test_the_ode_keeps_the_marginals(process: tm.Process, y: tm.Parametrization) -> None:
    rng = tm.RandomStreams(range(8_000), dtype=torch.float64)
    assert_is_pair(mean_model(process, y).sample((2, 1), rng, steps=60, sampler=tm.build_sampler("ab3")))


def test_eulers_solver_is_the_default() -> None:
    """For flow matching; on other schedules it is DDIM's step."""
    fm, ddpm = small_model("fm"), small_model("ddpm")
    for model, sampler in ((fm, tm.Sampler()), (fm, tm.DDIMSampler())):
        samples = [
            model.sample(SHAPE, tm.RandomStreams(range(3)), condition(3), steps=5, sampler=which)
            for which in (sampler, tm.build_sampler("euler"))
        ]
        torch.testing.assert_close(*samples, atol=1e-5, rtol=1e-5)
    one = [
        ddpm.sample(SHAPE, tm.RandomStreams(range(3)), condition(3), steps=5, sampler=tm.build_sampler(name))
        for name in ("dpm++2m", "ddim")
    ]
    assert not torch.allclose(*one, atol=1e-3)


@ALL_SETTINGS
def test_the_joint_kernel_has_the_moments_of_the_posterior(process: tm.Process, y: tm.Parametrization) -> None:
    exact = ExactMean(PAIR, process, y)
    joint, n = JointKernel(tm.MeanKernel(exact, nn.Identity()), process, y), 10_000
    for time in (0.0, 0.3, 0.8):
        t = torch.tensor(time, dtype=torch.float64)
        x_t = process.source((2, 1), tm.RandomStreams([5], dtype=torch.float64)).expand(n, 2, 1)
        params = tm.SamplingParams(solver=SOLVERS["ab3"](60))
        got = joint.sample(x_t, t, t, None, tm.RandomStreams(range(n), dtype=torch.float64), params)
        posterior = exact.posterior(x_t[:1], t)
        mean = posterior.mean()
        centred = posterior.means[0] - mean
        weights = posterior.log_weights[0].exp()
        covariance = torch.einsum("k,kij->ij", weights, posterior.covariances)
        covariance = covariance + torch.einsum("k,ki,kj->ij", weights, centred, centred)
        sigma, alpha = process.coefficients(t, x_t)
        ends = y.endpoints(x_t, got, sigma, alpha)
        assert ends is not None
        assert_moments(ends[1].flatten(1), mean[0], covariance, sigmas=6.0)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_joint_kernel_is_exact_at_every_number_of_transitions(count: int) -> None:
    params = tm.SamplingParams(solver=SOLVERS["ab3"](60))
    rng = tm.RandomStreams(range(10_000), dtype=torch.float64)
    model = mean_model(*SETTINGS["linear"])
    assert_is_pair(model.sample((2, 1), rng, steps=count, params=params, sampler=tm.GlassSampler()))


def test_one_transition_of_the_joint_kernel_is_the_ode() -> None:
    """At t = 0 the state is noise, so the inner flow is flow matching's own, from other noise."""
    model, params = small_model("fm"), tm.SamplingParams(solver=tm.Euler(6))
    rng = tm.RandomStreams(range(3))
    glass = model.sample(SHAPE, rng, condition(3), steps=1, params=params, sampler=tm.GlassSampler())
    rng = tm.RandomStreams(range(3))
    rng.normal(*SHAPE)
    plain = model.sample(SHAPE, rng, condition(3), steps=6)
    torch.testing.assert_close(glass, plain, atol=1e-5, rtol=1e-5)


class Known(MeanPredictor):
    """E[Y | X_t] = t, whatever X_t is, and a residual of 100."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def loss(self, *_: object) -> Tensor:
        raise AssertionError("not trained")

    def guided_mean(self, x_t: Tensor, t: Tensor, *_: object) -> Tensor:
        return t.to(x_t) * torch.ones_like(x_t)

    def mean_and_residual(self, x_t: Tensor, t: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        return self.guided_mean(x_t, t), torch.full_like(x_t, 100.0)


def test_no_solver_loses_a_residual() -> None:
    """With a mean of 0, the residuals of all steps add up."""

    class Kicks(Known):
        def guided_mean(self, x_t: Tensor, t: Tensor, *_: object) -> Tensor:
            return torch.zeros_like(x_t)

    model = tm.TransitionMatching(tm.LinearProcess(), tm.Difference(), Kicks(), tm.Continuous())
    for name in ("default", "ab2", "ab3"):
        sampled = model.sample((1, 1), tm.RandomStreams([0]), steps=7, sampler=tm.build_sampler(name))
        start = tm.RandomStreams([0]).normal(1, 1)
        torch.testing.assert_close(sampled, start + 100, msg=name)


@pytest.mark.parametrize(("name", "mean"), [("default", 0.0), ("midpoint", 0.25), ("ab2", 0.0)])
def test_a_residual_is_added_to_the_extrapolated_mean(name: str, mean: float) -> None:
    model = tm.TransitionMatching(tm.LinearProcess(), tm.Difference(), Known(), tm.Continuous())
    zeros, rng = torch.zeros(1, 1, 1), tm.RandomStreams([0])
    sampled = model.sample((1, 1), rng, steps=[0, 0.5], start=zeros, sampler=tm.build_sampler(name))
    torch.testing.assert_close(sampled, torch.full((1, 1, 1), 0.5 * (mean + 100)))
    if name == "ab2":  # the second step extrapolates from 0 and 0.5 to 0.75, the mean over [0.5, 1]
        whole = model.sample((1, 1), rng, steps=2, start=zeros, sampler=tm.build_sampler(name))
        torch.testing.assert_close(whole, torch.full((1, 1, 1), 100 + 0.5 * 0.75))


def test_evaluations_of_the_backbone_are_counted() -> None:
    model = small_model("fm")
    expected = {"default": 6, "ab2": 6, "ab3": 7, "dpm++2m": 6, "unipc": 6, "midpoint": 12, "heun": 11, "glass": 24}
    for name, count in expected.items():
        result = tm.generate(model, SHAPE, range(2), condition(2), steps=6, sampler=tm.build_sampler(name))
        assert result.evaluations.backbone == count, name


def test_an_adaptive_solver_follows_the_ode_to_its_tolerance() -> None:
    model = mean_model(*SETTINGS["linear"])
    rough, fine = [
        model.sample(
            (2, 1), tm.RandomStreams(range(9), dtype=torch.float64), steps=count, sampler=tm.build_sampler(name)
        )
        for name, count in (("adaptive:1e-6", 1), ("rk4", 1000))
    ]
    torch.testing.assert_close(rough, fine, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["ab2", "glass", "adaptive"])
def test_samplers_of_a_mean_reject_kernels_without_one(name: str) -> None:
    with pytest.raises(ValueError, match="needs a kernel that predicts a mean"):
        small_model("dtm").sample(SHAPE, tm.RandomStreams([0]), condition(1), steps=2, sampler=tm.build_sampler(name))


@pytest.mark.parametrize("name", ["uniform", "exponential"])
def test_a_named_grid_is_the_training_grid_of_that_name(name: str) -> None:
    """At the number of steps of training, so that a model on that grid accepts it; and only a pure function of both."""
    trained = getattr(tm.Grid, name)(6)
    assert tuple(build_grid(name, 6)) == trained.points
    assert trained.grid(build_grid(name, 6)).tolist() == list(trained.points)
    with pytest.raises(ValueError, match="not trained at"):
        trained.grid(build_grid("shifted:2", 6))


@pytest.mark.parametrize("spec", [*GRIDS, "shifted:0.5", "power:0.5"])
def test_grids_increase_from_noise_to_data(spec: str) -> None:
    for count in (1, 2, 16, 32):
        points = build_grid(spec, count)
        assert len(points) == count + 1
        assert (points[0], points[-1]) == (0, 1)
        assert all(a < b for a, b in pairwise(points))


def test_a_finer_training_grid_gives_its_nearest_times() -> None:
    trained = tm.Grid.uniform(1000)
    for spec in ("uniform", "shifted:3", "karras"):
        wanted, points = build_grid(spec, 16), trained.snapped(build_grid(spec, 16))
        assert trained.grid(points).tolist() == points
        assert max(abs(a - b) for a, b in zip(wanted, points, strict=True)) <= 0.0005 + 1e-12
    with pytest.raises(ValueError, match="closer than the 1000 of training"):
        trained.snapped(build_grid("exponential", 20))


def test_a_shift_is_applied_once() -> None:
    s, noise = 3.0, 1 - torch.arange(9).double() / 8
    expected = 1 - s * noise / (1 + (s - 1) * noise)
    visited = [pair[0] for pair in tm.Sampler().steps(tm.Continuous().grid(build_grid("shifted:3", 8)))]
    torch.testing.assert_close(torch.stack(list(visited)), expected[:-1])
    assert build_grid("resolution", 8, scale=9.0) == build_grid("shifted:3", 8)
    assert build_grid("resolution", 8) == build_grid("uniform", 8)


def test_samplers_are_built_from_strings() -> None:
    assert tm.build_sampler("default") == tm.Sampler()
    assert tm.build_sampler("restart") == tm.RestartSampler()
    assert tm.build_sampler("ddim:0.5") == tm.DDIMSampler(0.5)
    assert tm.build_sampler("overshoot:0.8,0.2") == tm.OvershootSampler(0.8, 0.2)
    for spec, words in {
        "ddmi": "did you mean 'ddim'",
        "default:1": "does not take the arguments '1'",
        "ddim:2": "eta must be in",
        "ddim:x": "are numbers",
        "overshoot:1.5": r"must be in \[0, 1\]",
        "sde:-1": "scale of sde",
        "ab2:3": "does not take",
        "restart:0.6,0.4": "late,early,times",
        "restart:0.6,0.4,1.5": "late,early,times",
        "restart:0.6,0.4,inf": "late,early,times",
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
