"""The flow distribution and the parallel kernel, with heads whose velocity is exact."""

import pytest
import torch
from laws import SHAPE, SMALL_HEAD, GaussianHead, Reading, assert_moments, awake, condition, data_of, small_model
from torch import Tensor

import tmatch as tm
from tmatch.guidance import Branches

CONDITIONAL = Branches((None,), (1.0,))


def test_an_exact_velocity_gives_the_exact_moments() -> None:
    n, mean = 40_000, torch.tensor([0.7, -1.2], dtype=torch.float64)
    flow = tm.Flow(GaussianHead(2, variance=0.3))
    rng = tm.RandomStreams(range(n), dtype=torch.float64)
    b = flow.sample(mean.expand(n, 1, 2), None, rng, tm.SamplingParams(tm.RK4(32)), CONDITIONAL)
    assert_moments(b.flatten(1), mean, 0.3 * torch.eye(2).double())


def test_the_exact_velocity_has_the_least_loss() -> None:
    n, mean = 20_000, torch.tensor([0.7, -1.2])
    b = mean + 0.3**0.5 * tm.RandomStreams(range(n)).normal(1, 2)
    losses = {
        variance: tm.Flow(GaussianHead(2, variance))
        .loss(b, mean.expand(n, 1, 2), None, tm.RandomStreams(range(n, 2 * n)))
        .mean()
        for variance in (0.15, 0.3, 0.6)
    }
    assert min(losses, key=lambda v: losses[v]) == 0.3


@pytest.mark.parametrize("patch", [None, (1, 3), (2, 1), (2, 3)])
def test_every_token_is_sampled_at_its_position(patch: tuple[int, int] | None) -> None:
    x_t = data_of("dtm", 5)  # not the noise that the head starts from
    channels = SHAPE[-1] * (1 if patch is None else patch[0] * patch[1])
    kernel = tm.ParallelFlow(Reading(), tm.Flow(GaussianHead(channels, variance=1e-8)), patch)
    params = tm.SamplingParams(tm.RK4(64))
    y = kernel.sample(x_t, *torch.tensor([0.5, 1.0]), None, tm.RandomStreams(range(5)), params)
    torch.testing.assert_close(y, x_t, atol=1e-2, rtol=0)


def test_more_samples_per_token_reduce_the_variance_of_the_loss() -> None:
    n, mean = 4000, torch.tensor([0.7, -1.2])
    b = (mean + 0.5).expand(n, 1, 2)  # the same token, so that only (s, B_0) vary
    one, many = (
        tm.Flow(GaussianHead(2, 1.0), samples_per_token).loss(
            b, mean.expand(n, 1, 2), None, tm.RandomStreams(range(n, 2 * n))
        )
        for samples_per_token in (1, 16)
    )
    assert one.mean() == pytest.approx(many.mean().item(), abs=5 * one.std().item() / n**0.5)
    assert many.std().item() == pytest.approx(one.std().item() / 4, rel=0.1)


def test_s_follows_its_density() -> None:
    seen: list[torch.Tensor] = []

    class Listening(GaussianHead):
        def forward(self, y_s: Tensor, s: Tensor, context: Tensor, r: Tensor | None = None) -> Tensor:
            seen.append(s)
            return super().forward(y_s, s, context)

    for density in (tm.Uniform(), tm.LogitNormal(0.0, 0.3)):
        flow = tm.Flow(Listening(2, 1.0), density=density)
        flow.loss(torch.zeros(3000, 2, 2), torch.zeros(3000, 2, 2), None, tm.RandomStreams(range(3000)))
    assert seen[0].shape == (3000, 1, 2), "one time per token"
    assert seen[0].std() == pytest.approx(12**-0.5, abs=0.01)
    assert seen[1].logit().std() == pytest.approx(0.3, abs=0.01)


def test_wrong_channels_are_rejected() -> None:
    flow = tm.Flow(GaussianHead(2, 1.0))
    with pytest.raises(ValueError, match="2 channels per token, but the state has 3"):
        flow.loss(torch.zeros(1, 1, 3), torch.zeros(1, 1, 2), None, tm.RandomStreams([0]))
    with pytest.raises(ValueError, match="samples_per_token must be a positive integer"):
        tm.Flow(GaussianHead(2, 1.0), samples_per_token=0)


@pytest.mark.parametrize("t", [None, torch.tensor([0.25, 0.25])], ids=["untimed", "timed"])
def test_the_time_cache_changes_nothing(t: torch.Tensor | None) -> None:
    """Time features are computed once per s; the tokens are the same."""
    flow = awake(tm.Flow(tm.FlowHead(4, 8, 16, 2, timed=t is not None)))
    calls: list[int] = []
    flow.head.s_in.register_forward_hook(lambda *_: calls.append(1))
    cache, params = {}, tm.SamplingParams(tm.Heun(2))
    for seed in range(3):
        h, b_0 = torch.randn(2, 1, 8), flow.base_noise(tm.RandomStreams([seed, 3]), 1)
        kept = flow(b_0, h, t, params, CONDITIONAL, cache)
        assert torch.equal(kept, flow(b_0, h, t, params, CONDITIONAL))
    assert sorted(cache) == [0.0, 0.5, 1.0]
    assert len(calls) == 3 + 3 * 4, "three times once, and four evaluations for each of three tokens"


@pytest.mark.parametrize(("token_fraction", "tokens"), [(0.1, 1), (0.5, 3), (0.7, 5), (1.0, 6)])
def test_the_head_trains_on_a_fraction_of_the_tokens(token_fraction: float, tokens: int) -> None:
    model, seen = small_model("dtm", head=SMALL_HEAD.model_copy(update={"token_fraction": token_fraction})), []
    loss = model.kernel.distribution.loss
    model.kernel.distribution.loss = lambda b, *rest: (seen.append(b.shape[1]), loss(b, *rest))[1]
    model.loss(data_of("dtm", 2), tm.RandomStreams(range(2)), condition(2))
    assert seen == [tokens]
