import pytest
import torch
from laws import PROCESSES, SCHEDULES, assert_moments

from tmatch import DiffusionProcess, IndependentLinearProcess, LinearProcess, RandomStreams, VariancePreserving
from tmatch.process import Process, Schedule

N = 40_000
ALL = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())


def at(t: float) -> torch.Tensor:
    return torch.tensor(t, dtype=torch.float64)


def rng(n: int = N) -> RandomStreams:
    return RandomStreams(range(n), dtype=torch.float64)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_schedule_goes_from_noise_to_data(schedule: Schedule) -> None:
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    sigma, alpha = schedule.sigma(t), schedule.alpha(t)
    assert sigma[0] == pytest.approx(1, abs=1e-4)
    assert alpha[0] == pytest.approx(0, abs=1e-2)
    assert (sigma[-1], alpha[-1]) == (0, 1)
    assert (sigma.diff() < 0).all()
    assert (alpha.diff() > 0).all()


@pytest.mark.parametrize("name", ["cosine", "variance-preserving"])
def test_unit_data_keep_unit_variance(name: str) -> None:
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(SCHEDULES[name].sigma(t) ** 2 + SCHEDULES[name].alpha(t) ** 2, torch.ones_like(t))


def test_the_variance_preserving_schedule_is_that_of_ddpm() -> None:
    """Ho et al. (2020): abar is the product of 1 - beta over 1000 steps, with beta from 1e-4 to 0.02."""
    abar = (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)
    t = 1 - torch.arange(1, 1001) / 1000  # in reversed time
    torch.testing.assert_close(VariancePreserving().alpha(t.double()).log(), abar.log() / 2, rtol=0.02, atol=1e-3)


@ALL
def test_a_path_starts_in_the_source_and_ends_in_the_data(process: Process) -> None:
    x_T = torch.full((N, 1, 2), 1.5, dtype=torch.float64)
    path = process.path(x_T, torch.tensor([0, 0.3, 1], dtype=torch.float64), rng())
    assert torch.equal(path[-1], x_T)
    trace = process.schedule.alpha(at(0.0))
    assert_moments(path[0].flatten(1), 1.5 * trace * torch.ones(2).double(), torch.eye(2).double())


@ALL
def test_marginals_depend_on_the_schedule_alone(process: Process) -> None:
    x_T = torch.full((N, 1, 2), 1.5, dtype=torch.float64)
    q = process.sample(x_T, at(0.3), at(0.6), rng())
    for t, x in ((0.3, q.x_t), (0.6, q.x_next)):
        sigma, alpha = process.schedule.sigma(at(t)), process.schedule.alpha(at(t))
        assert_moments(x.flatten(1), 1.5 * alpha * torch.ones(2).double(), sigma**2 * torch.eye(2).double())


@ALL
def test_paths_and_transitions_have_the_same_distribution(process: Process) -> None:
    x_T = torch.zeros(N, 1, 1, dtype=torch.float64)
    q = process.sample(x_T, at(0.3), at(0.6), rng())
    path = process.path(x_T, torch.tensor([0, 0.3, 0.6, 1], dtype=torch.float64), rng())
    pair = torch.cat((q.x_t, q.x_next), dim=1).flatten(1)
    piece = torch.cat((path[1], path[2]), dim=1).flatten(1)
    expected = pair.T.cov()
    error = ((expected.diagonal().outer(expected.diagonal()) + expected**2) * 2 / N).sqrt()
    assert ((piece.T.cov() - expected).abs() < 5 * error).all()


@ALL
def test_renoise_keeps_the_marginals(process: Process) -> None:
    x_T = torch.full((N, 1, 1), 1.5, dtype=torch.float64)
    source = rng()
    later = process.sample(x_T, at(0.7), at(0.8), source).x_t
    earlier = process.renoise(later, at(0.7), at(0.4), source)
    sigma, alpha = process.schedule.sigma(at(0.4)), process.schedule.alpha(at(0.4))
    assert_moments(earlier.flatten(1), 1.5 * alpha * torch.ones(1).double(), sigma**2 * torch.eye(1).double())


def test_the_linear_process_keeps_its_noise_and_the_independent_one_does_not() -> None:
    x_T = torch.zeros(N, 1, 1, dtype=torch.float64)
    for process, correlation in ((LinearProcess(), 1.0), (IndependentLinearProcess(), 0.0)):
        q = process.sample(x_T, at(0.2), at(0.5), rng())
        measured = torch.corrcoef(torch.stack((q.x_t.flatten(), q.x_next.flatten())))[0, 1]
        assert measured == pytest.approx(correlation, abs=5 / N**0.5)


def test_the_diffusion_process_adds_independent_noise() -> None:
    """X_s = (alpha_s / alpha_u) X_u + noise for s < u, so that Cov(X_s, X_u | X_T) = alpha_s / alpha_u sigma_u^2."""
    process = DiffusionProcess(VariancePreserving())
    times = torch.tensor([0.1, 0.4, 0.7, 0.9], dtype=torch.float64)
    path = process.path(torch.zeros(N, 1, 1, dtype=torch.float64), times, rng())
    measured = torch.cat(path, dim=1).flatten(1)
    sigma, alpha = process.schedule.sigma(times), process.schedule.alpha(times)
    earlier, later = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    s, u = torch.minimum(earlier, later), torch.maximum(earlier, later)
    assert_moments(measured, torch.zeros(4).double(), alpha[s] / alpha[u] * sigma[u] ** 2)


def test_the_diffusion_step_is_the_posterior_of_ddpm() -> None:
    """Ho et al. (2020), Eqs. 6 and 7, in their variables: abar_t = alpha_t^2, beta from consecutive abars."""
    process, t, t_next = DiffusionProcess(VariancePreserving()), at(0.45), at(0.5)
    x_t, x_T = 0.7, -0.4
    sigma, alpha = process.schedule.sigma(t), process.schedule.alpha(t)
    z_t = torch.full((N, 1, 1), float((x_t - alpha * x_T) / sigma), dtype=torch.float64)
    x_next = process.advance(z_t, torch.full_like(z_t, x_T), t, t_next, rng())
    abar, abar_prev = alpha**2, process.schedule.alpha(t_next) ** 2  # in reversed time
    beta = 1 - abar / abar_prev
    mean = abar_prev.sqrt() * beta / (1 - abar) * x_T + (abar / abar_prev).sqrt() * (1 - abar_prev) / (1 - abar) * x_t
    variance = (1 - abar_prev) / (1 - abar) * beta
    assert_moments(x_next.flatten(1), mean[None], variance[None, None])
