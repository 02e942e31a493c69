"""The mathematics of the paper with exact kernels instead of learned ones, through the library's own `sample`."""

from itertools import pairwise

import pytest
import torch
from exact import ExactMean, GaussianMixture, PosteriorKernel
from laws import PROCESSES, assert_moments
from torch import Tensor, nn

import tmatch as tm
from tmatch.parametrization import PARAMETRIZATIONS

N = 60_000
MEAN = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
COVARIANCE = torch.tensor([[1.0, 0.8, 0.3], [0.8, 1.2, 0.1], [0.3, 0.1, 0.4]], dtype=torch.float64)
GAUSSIAN = GaussianMixture.gaussian(MEAN, COVARIANCE)
MIXTURE = GaussianMixture(
    torch.tensor([0.3, 0.7], dtype=torch.float64),
    torch.tensor([[1.5, 1.0], [-1.0, -0.5]], dtype=torch.float64),
    torch.tensor([[[0.2, 0.1], [0.1, 0.3]], [[0.3, -0.2], [-0.2, 0.4]]], dtype=torch.float64),
)
EYE = torch.eye(3, dtype=torch.float64)


def dtm(target: GaussianMixture, per_token: bool = False) -> tm.TransitionMatching:
    mean = ExactMean(target, tm.LinearProcess(), tm.Difference())
    return tm.TransitionMatching(mean.process, tm.Difference(), PosteriorKernel(mean, per_token), tm.Continuous())


def fm(target: GaussianMixture) -> tm.TransitionMatching:
    mean = ExactMean(target, tm.LinearProcess(), tm.Difference())
    return tm.TransitionMatching(mean.process, tm.Difference(), tm.MeanKernel(mean, nn.Identity()), tm.Continuous())


def sample(model: tm.TransitionMatching, tokens: int, steps: int, n: int = N) -> Tensor:
    return model.sample((tokens, 1), tm.RandomStreams(range(n), dtype=torch.float64), steps=steps).flatten(1)


def closed_form(steps: int, stochastic: bool, per_token: bool) -> tuple[Tensor, Tensor]:
    """Mean and covariance of X_T after `steps` steps X' = X + h Y, for the Gaussian target.

    With C = t Sigma - (1 - t) I and S = t^2 Sigma + (1 - t)^2 I,
    E[Y | x] = m + C S^-1 (x - t m) and Cov[Y | x] = Sigma + I - C S^-1 C^T.
    """
    mean, covariance, h = torch.zeros(3).double(), EYE.clone(), 1 / steps
    for k in range(steps):
        t = k * h
        c = t * COVARIANCE - (1 - t) * EYE
        gain = c @ torch.linalg.inv(t**2 * COVARIANCE + (1 - t) ** 2 * EYE)
        conditional = COVARIANCE + EYE - gain @ c.T
        a = EYE + h * gain
        mean = mean + h * (MEAN + gain @ (mean - t * MEAN))
        covariance = a @ covariance @ a.T
        if stochastic:
            covariance = covariance + h**2 * (conditional.diagonal().diag() if per_token else conditional)
    return mean, covariance


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 16])
def test_dtm_with_the_joint_posterior_is_exact_at_every_number_of_steps(steps: int) -> None:
    assert_moments(sample(dtm(GAUSSIAN), 3, steps), MEAN, COVARIANCE)


def exact_pairs() -> list[tuple[str, str]]:
    """Every pair that the library accepts in continuous time."""

    def allowed(q: str, y: str) -> bool:
        try:
            PARAMETRIZATIONS[y].check(PROCESSES[q], tm.Continuous())
        except ValueError:
            return False
        return True

    return [(q, y) for q in PROCESSES for y in PARAMETRIZATIONS if allowed(q, y)]


@pytest.mark.parametrize(("q", "y"), exact_pairs())
def test_so_is_every_process_and_parametrization(q: str, y: str) -> None:
    """The law of total probability (Eq. 6) holds for any process and any Y."""
    process, parametrization = PROCESSES[q], PARAMETRIZATIONS[y]
    kernel = PosteriorKernel(ExactMean(GAUSSIAN, process, parametrization))
    model = tm.TransitionMatching(process, parametrization, kernel, tm.Continuous())
    assert_moments(sample(model, 3, 3), MEAN, COVARIANCE)


@pytest.mark.parametrize("steps", [1, 2, 4, 16])
def test_euler_flow_matching_follows_its_closed_form(steps: int) -> None:
    assert_moments(sample(fm(GAUSSIAN), 3, steps), *closed_form(steps, stochastic=False, per_token=False))


def test_flow_matching_shrinks_the_covariance_less_with_more_steps() -> None:
    volumes = [torch.linalg.det(closed_form(n, False, False)[1]) for n in (1, 2, 4, 8, 16, 64)]
    assert all(a < b for a, b in pairwise(volumes))
    assert volumes[-1] < torch.linalg.det(COVARIANCE)
    measured = [torch.linalg.det(sample(fm(GAUSSIAN), 3, n).T.cov()) for n in (2, 4, 8)]
    assert all(a < b for a, b in pairwise(measured))
    assert measured[-1] < 0.9 * torch.linalg.det(COVARIANCE)


@pytest.mark.parametrize("steps", [1, 2, 4, 16])
def test_independent_tokens_follow_their_recursion(steps: int) -> None:
    mean, covariance = closed_form(steps, stochastic=True, per_token=True)
    assert_moments(sample(dtm(GAUSSIAN, per_token=True), 3, steps), mean, covariance)


def test_independent_tokens_converge_to_the_target() -> None:
    errors = [(closed_form(n, True, True)[1] - COVARIANCE).abs().max() for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert errors[0] == pytest.approx(0.8)  # one step: independent tokens
    assert all(fine < coarse for coarse, fine in pairwise(errors))
    assert errors[-1] < 0.01
    assert errors[-2] / errors[-1] == pytest.approx(2, abs=0.1)  # first order in 1 / T


@pytest.mark.parametrize("steps", [1, 4])
def test_dtm_is_exact_on_a_mixture(steps: int) -> None:
    x = sample(dtm(MIXTURE), 2, steps)
    mean = MIXTURE.weights @ MIXTURE.means
    off = MIXTURE.means - mean
    covariance = torch.einsum("k,kij->ij", MIXTURE.weights, MIXTURE.covariances + off[:, :, None] * off[:, None, :])
    assert abs(x.mean(0) - mean).max() < 5 * (covariance.diagonal().max() / N) ** 0.5
    assert (x.T.cov() - covariance).abs().max() < 0.03
    right = (x[:, 0] + x[:, 1] > 0.5).double().mean()  # about the first component
    direct = MIXTURE.posterior(torch.zeros(N, 2).double(), torch.tensor(1.0), torch.tensor(0.0))
    reference = (direct.sample(tm.RandomStreams(range(N, 2 * N), dtype=torch.float64)).sum(1) > 0.5).double().mean()
    assert abs(right - reference) < 5 * (2 * 0.25 / N) ** 0.5


def velocity(x: Tensor, t: float) -> Tensor:
    """The marginal velocity of flow matching from the score: u_t(x) = (x + (1 - t) grad log q_t(x)) / t."""
    x = x.clone().requires_grad_()
    log_prob = MIXTURE.log_prob(x, torch.tensor(1 - t).double(), torch.tensor(t).double())
    (score,) = torch.autograd.grad(log_prob.sum(), x)
    return ((x + (1 - t) * score) / t).detach()


@pytest.mark.parametrize("t", [0.2, 0.5, 0.8])
def test_the_mean_of_a_dtm_step_is_the_flow_matching_velocity(t: float) -> None:
    for point in ([0.3, -0.2], [-0.5, 0.4]):
        x = torch.tensor(point, dtype=torch.float64)
        start = x.expand(N, 2).reshape(N, 2, 1)
        moved = dtm(MIXTURE).sample(
            (2, 1), tm.RandomStreams(range(N), dtype=torch.float64), steps=[t, t + 0.1], start=start
        )
        y = ((moved - start) / 0.1).flatten(1)
        error = (y.mean(0) - velocity(x[None], t)[0]).abs() / (y.std(0) / N**0.5)
        assert error.max() < 5


def test_fm_moves_along_the_marginal_velocity() -> None:
    x = torch.tensor([[0.3, -0.2], [-0.5, 0.4]], dtype=torch.float64)
    moved = fm(MIXTURE).sample((2, 1), tm.RandomStreams([0, 1]), steps=[0.5, 0.6], start=x[..., None])
    torch.testing.assert_close((moved[..., 0] - x) / 0.1, velocity(x, 0.5))


def test_many_small_dtm_steps_become_one_euler_step() -> None:
    """Theorem 1: (X_{t+k} - x) / (k/T) -> u_t(x) as T grows, with k = sqrt(T) steps, so that k/T -> 0."""
    n, t = 4000, 0.4
    x = torch.tensor([0.3, -0.2], dtype=torch.float64)
    start = x.expand(n, 2).reshape(n, 2, 1)
    errors = []
    for T in (16, 64, 256, 1024, 4096):
        k = round(T**0.5)
        grid = [t + j / T for j in range(k + 1)]
        moved = dtm(MIXTURE).sample((2, 1), tm.RandomStreams(range(n), dtype=torch.float64), steps=grid, start=start)
        off = (moved - start).flatten(1) / (k / T) - velocity(x[None], t)
        errors.append(off.square().sum(1).mean().sqrt().item())
    assert all(fine < 0.85 * coarse for coarse, fine in pairwise(errors))
    assert errors[-1] < errors[0] / 3
