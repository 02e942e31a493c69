"""The residual kernel, with networks that are exact."""

import pytest
import torch
from laws import SHAPE, GaussianHead, Reading, assert_moments, condition, small_dit, small_model
from torch import nn

import tmatch as tm


class Centred(GaussianHead):
    """The exact velocity towards N(0, v) for any h: the residual after the mean."""

    def prepare(self, h: torch.Tensor, t: torch.Tensor | None, cache: object = None) -> torch.Tensor:
        return torch.zeros_like(h)


def test_the_mean_and_an_exact_residual_give_the_exact_moments() -> None:
    n, mean = 40_000, torch.tensor([0.7, -1.2], dtype=torch.float64)
    kernel = tm.ResidualFlow(Reading(), nn.Identity(), tm.Flow(Centred(2, variance=0.3)))
    rng = tm.RandomStreams(range(n), dtype=torch.float64)
    y = kernel.sample(mean.expand(n, 1, 2), *torch.tensor([0.5, 1.0]), None, rng, tm.SamplingParams(tm.RK4(32)))
    assert_moments(y.flatten(1), mean, 0.3 * torch.eye(2).double())


def test_the_loss_is_that_of_flow_matching_plus_that_of_the_residual() -> None:
    """And the readout learns from the regression alone: it would drift to where the residual is easiest to model."""
    kernel = small_model("dtm-mean").kernel
    y, x_t = (tm.RandomStreams(range(seed, seed + 5)).normal(*SHAPE) for seed in (100, 200))
    t, text = tm.RandomStreams(range(300, 305)).uniform(), condition(5)
    regression = kernel.mean.loss(y, x_t, t, text, tm.RandomStreams(range(5)))
    m = kernel.mean.mean(x_t, t, text)
    rest = tm.ParallelFlow(kernel.backbone, kernel.distribution).loss(y - m, x_t, t, text, tm.RandomStreams(range(5)))
    both = kernel.loss(y, x_t, t, text, tm.RandomStreams(range(5)))
    torch.testing.assert_close(both, regression + rest)
    gradients = [torch.autograd.grad(one.mean(), kernel.readout.weight) for one in (both, regression)]
    torch.testing.assert_close(*gradients)


def test_the_same_weights_sample_as_flow_matching() -> None:
    model = small_model("dtm-mean")
    as_fm = tm.TransitionMatching(model.process, model.parametrization, model.kernel.mean, model.times)
    fm = tm.build("fm", small_dit(), SHAPE[-1])
    fm.kernel.load_state_dict({k: v for k, v in model.kernel.state_dict().items() if not k.startswith("distribution")})
    one, other = (m.sample(SHAPE, tm.RandomStreams(range(3)), condition(3), 4) for m in (as_fm, fm))
    assert torch.equal(one, other)


@pytest.mark.parametrize("patch", [None, (1, 3)])
def test_a_fraction_of_the_tokens_gives_the_same_loss_on_average(patch: tuple[int, int] | None) -> None:
    kernel = small_model("dtm", head=tm.HeadConfig(width=24, depth=2, patch=patch)).kernel
    y, x_t = (tm.RandomStreams([seed]).normal(*SHAPE).expand(4000, *SHAPE) for seed in (1, 2))
    t, losses = torch.full((4000,), 0.3), []
    for token_fraction in (1.0, 0.5):
        kernel.token_fraction = token_fraction
        with torch.no_grad():
            losses.append(kernel.loss(y, x_t, t, condition(1).repeated(4000), tm.RandomStreams(range(4000))))
    full, half = losses
    error = (full.var() / 4000 + half.var() / 4000).sqrt()
    assert (full.mean() - half.mean()).abs() < 4 * error
    assert half.var() > 1.2 * full.var()
