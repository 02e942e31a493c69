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


@pytest.mark.parametrize("patch", [None, (1, 3), (2, 1)])
def test_every_token_is_sampled_at_its_position(patch: tuple[int, int] | None) -> None:
    x_t = tm.RandomStreams(range(5)).normal(*SHAPE)
    channels = SHAPE[-1] * (1 if patch is None else patch[0] * patch[1])
    kernel = tm.ResidualFlow(Reading(), nn.Identity(), tm.Flow(Centred(channels, variance=1e-8)), patch)
    y = kernel.sample(x_t, *torch.tensor([0.5, 1.0]), None, tm.RandomStreams(range(5)), tm.SamplingParams(tm.RK4(64)))
    torch.testing.assert_close(y, x_t, atol=1e-2, rtol=0)


def test_the_loss_is_that_of_flow_matching_plus_that_of_the_residual() -> None:
    kernel = small_model("dtm-mean").kernel
    assert isinstance(kernel, tm.ResidualFlow)
    y, x_t = tm.RandomStreams(range(5)).normal(*SHAPE), tm.RandomStreams(range(5, 10)).normal(*SHAPE)
    t, text = tm.RandomStreams(range(5)).uniform(), condition(5)
    regression = kernel.mean.loss(y, x_t, t, text, tm.RandomStreams(range(5)))
    m = kernel.mean.mean(x_t, t, text)
    rest = tm.ParallelFlow(kernel.backbone, kernel.distribution).loss(y - m, x_t, t, text, tm.RandomStreams(range(5)))
    torch.testing.assert_close(kernel.loss(y, x_t, t, text, tm.RandomStreams(range(5))), regression + rest)


def test_the_readout_learns_from_the_regression_alone() -> None:
    """Otherwise it would drift to where the residual is easiest to model."""
    kernel = small_model("dtm-mean").kernel
    assert isinstance(kernel, tm.ResidualFlow)
    y, x_t = tm.RandomStreams(range(5)).normal(*SHAPE), tm.RandomStreams(range(5, 10)).normal(*SHAPE)
    t, text = tm.RandomStreams(range(5)).uniform(), condition(5)
    both = torch.autograd.grad(kernel.loss(y, x_t, t, text, tm.RandomStreams(range(5))).mean(), kernel.readout.weight)
    alone = torch.autograd.grad(
        kernel.mean.loss(y, x_t, t, text, tm.RandomStreams(range(5))).mean(), kernel.readout.weight
    )
    torch.testing.assert_close(both, alone)


def test_the_same_weights_sample_as_flow_matching() -> None:
    model = small_model("dtm-mean")
    assert isinstance(model.kernel, tm.ResidualFlow)
    as_fm = tm.TransitionMatching(model.process, model.parametrization, model.kernel.mean, model.times)
    fm = tm.build("fm", small_dit(), SHAPE[-1])
    fm.kernel.load_state_dict({k: v for k, v in model.kernel.state_dict().items() if not k.startswith("distribution")})
    one, other = (m.sample(SHAPE, tm.RandomStreams(range(3)), condition(3), 4) for m in (as_fm, fm))
    assert torch.equal(one, other)


@pytest.mark.parametrize("patch", [None, (1, 3)])
def test_a_fraction_of_the_tokens_gives_the_same_loss_on_average(patch: tuple[int, int] | None) -> None:
    kernel = small_model("dtm", head=tm.HeadConfig(width=24, depth=2, patch=patch)).kernel
    assert isinstance(kernel, tm.ParallelFlow)
    y, x_t = (tm.RandomStreams([seed]).normal(*SHAPE).expand(4000, *SHAPE) for seed in (1, 2))
    losses = []
    for token_fraction in (1.0, 0.5):
        kernel.token_fraction = token_fraction
        with torch.no_grad():
            losses.append(
                kernel.loss(
                    y, x_t, torch.full((4000,), 0.3), condition(1).repeated(4000), tm.RandomStreams(range(4000))
                )
            )
    whole, half = losses
    error = (whole.var() / 4000 + half.var() / 4000).sqrt()
    assert (whole.mean() - half.mean()).abs() < 4 * error
    assert half.var() > 1.2 * whole.var()
