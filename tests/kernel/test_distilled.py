"""Distillation from the mean: the exact velocity, against posteriors in closed form."""

import pytest
import torch
from exact import ExactMean, GaussianMixture
from laws import SCHEDULES, SHAPE, SMALL_HEAD, assert_moments, condition, data_of, small_dit, small_model
from torch import Tensor, nn

import tmatch as tm
from tmatch.kernel.exact import combined_reading, exact_velocity
from tmatch.process import Schedule
from tmatch.tensors import expand_like

JOINT = tm.HeadConfig(width=24, depth=2, kind="transformer", distill=True)
MIXTURE = GaussianMixture(
    torch.tensor([0.3, 0.7], dtype=torch.float64),
    torch.tensor([[1.5, 1.0], [-1.0, -0.5]], dtype=torch.float64),
    torch.tensor([[[0.2, 0.1], [0.1, 0.3]], [[0.3, -0.2], [-0.2, 0.4]]], dtype=torch.float64),
)
COVARIANCE = torch.tensor([[1.0, 0.9], [0.9, 1.2]], dtype=torch.float64)
SCALES, AXES = torch.linalg.eigh(COVARIANCE)


def states(count: int, seed: int) -> Tensor:
    """States of two tokens of one number."""
    return tm.RandomStreams(range(seed, seed + count), dtype=torch.float64).normal(2, 1)


def velocity_by_bayes(x: Tensor, y_s: Tensor, sigma: Tensor, alpha: Tensor, s: Tensor) -> Tensor:
    """E[Y - B_0 | X_t, y_s] by Bayes' rule twice: X_T given X_t, and then Y given y_s."""
    velocities = []
    for x_k, y_k in zip(x.flatten(1), y_s.flatten(1), strict=True):
        given_x = MIXTURE.posterior(x_k[None], sigma, alpha)
        scale = (sigma + alpha) / sigma  # Y = (sigma + alpha) / sigma X_T - X_t / sigma
        y = GaussianMixture(
            given_x.log_weights[0].exp(), scale * given_x.means[0] - x_k / sigma, scale**2 * given_x.covariances
        )
        velocities.append((y.posterior(y_k[None], 1 - s, s).mean()[0] - y_k) / (1 - s))
    return torch.stack(velocities).view_as(x)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=str)
@pytest.mark.parametrize("t", [0.0, 0.1, 0.6, 0.99])
@pytest.mark.parametrize("s", [0.0, 0.2, 0.7, 0.99])
def test_two_readings_are_worth_one_at_another_time(schedule: Schedule, t: float, s: float) -> None:
    """And the mean there gives the velocity of the joint kernel, on every schedule."""
    time, own = torch.tensor([t, s], dtype=torch.float64)
    sigma, alpha = schedule.sigma(time), schedule.alpha(time)
    x, y_s = states(5, 0), states(5, 50)
    one = combined_reading(x, y_s, sigma, alpha, own)
    mean = ExactMean(MIXTURE, tm.LinearProcess(), tm.Difference())(one.x, one.t)
    torch.testing.assert_close(one.velocity(mean), velocity_by_bayes(x, y_s, sigma, alpha, own), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_the_ends_of_the_flow_are_limits(t: float) -> None:
    """An inner solver evaluates s = 0, and some s = 1; neither is divided by."""
    mean, time = GaussianMean(), torch.tensor(t, dtype=torch.float64)
    x, y = states(4, 0), states(4, 50)
    for s, near in ((0.0, 1e-9), (1.0, 1 - 1e-9)):
        at, close = (exact_velocity(mean, x, time, y, torch.tensor(v, dtype=torch.float64)) for v in (s, near))
        torch.testing.assert_close(at, close, rtol=1e-6, atol=1e-6)


def test_every_image_has_its_own_times() -> None:
    x, y, mean = states(3, 0), states(3, 50), GaussianMean()
    t, s = torch.tensor([[0.1, 0.5, 0.9], [0.0, 0.6, 0.3]], dtype=torch.float64)
    together = exact_velocity(mean, x, t, y, s)
    for k in range(3):
        torch.testing.assert_close(together[k], exact_velocity(mean, x[k : k + 1], t[k], y[k : k + 1], s[k])[0])


class GaussianMean(nn.Module):
    """m(x, t) = E[Y | X_t = x] of N(0, COVARIANCE), at one time for each image."""

    def forward(self, x: Tensor, t: Tensor, condition: None = None) -> Tensor:
        t = expand_like(t, x)[..., 0].to(x) if t.ndim else t.to(x)
        slope = (t * SCALES - (1 - t)) / ((1 - t) ** 2 + t**2 * SCALES)
        return ((x.flatten(1) @ AXES * slope) @ AXES.T).view_as(x)


class StateAndMean(GaussianMean):
    """A backbone that returns the state and its mean."""

    def forward(self, x: Tensor, t: Tensor, condition: None = None) -> Tensor:
        return torch.cat((x, super().forward(x, t)), dim=-1)


class MeanOf(nn.Module):
    """The readout of that backbone."""

    def forward(self, h: Tensor) -> Tensor:
        return h[..., 1:]


class ExactHead(tm.Head):
    """The exact velocity of the residual, times a factor."""

    joint, channels = True, 1

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def prepare(self, h: Tensor, t: Tensor | None, cache: object = None) -> tuple[Tensor, ...]:
        assert t is not None
        return h[:, 0, :, :1], h[:, 0, :, 1:], t

    def forward(self, y: Tensor, s: Tensor, context: tuple[Tensor, ...], r: Tensor | None = None) -> Tensor:
        x, m, t = context
        s = s.to(y).expand(*y.shape[:2])[:, 0]
        y_s = y[:, 0] + expand_like(s, m) * m
        return self.factor * (exact_velocity(GaussianMean(), x, t, y_s, s) - m).unsqueeze(1)


def exact_kernel(head: tm.Head, kind: type[tm.ResidualFlow] = tm.DistilledResidual) -> tm.ResidualFlow:
    return kind(StateAndMean(), MeanOf(), tm.Flow(head))


@pytest.mark.parametrize("t", [0.0, 0.4, 0.8])
def test_the_exact_velocity_samples_the_joint_posterior(t: float) -> None:
    """Mean and covariance of Y | X_t; the covariance between tokens is what a per-token head lacks."""
    n, x, time = 20_000, torch.tensor([[0.8], [-0.5]], dtype=torch.float64), torch.tensor(t, dtype=torch.float64)
    rng, params = tm.RandomStreams(range(n), dtype=torch.float64), tm.SamplingParams(tm.RK4(24))
    y = exact_kernel(ExactHead()).sample(x.expand(n, 2, 1), time, time, None, rng, params)
    target = GaussianMixture.gaussian(torch.zeros(2, dtype=torch.float64), COVARIANCE)
    posterior = target.posterior(x.view(1, 2), 1 - time, time)
    mean = (posterior.mean()[0] - x.flatten()) / (1 - time)
    assert_moments(y.flatten(1), mean, posterior.covariances[0] / (1 - time) ** 2)


def test_distillation_is_training_on_samples_without_their_noise() -> None:
    """The loss on samples exceeds that of distillation by a constant, whatever the head: the minimum is the same."""
    n = 40_000
    rng = tm.RandomStreams(range(n), dtype=torch.float64)
    x_T = (rng.normal(2) * SCALES.sqrt() @ AXES.T)[..., None]
    t = rng.uniform().to(x_T)
    q = tm.LinearProcess().sample(x_T, t, t, rng)
    y, noise = x_T - q.z_t, []
    for factor in (1.0, 0.5, 0.0):
        pair = [
            exact_kernel(ExactHead(factor), kind).loss(y, q.x_t, t, None, tm.RandomStreams(range(n, 2 * n)))
            for kind in (tm.ResidualFlow, tm.DistilledResidual)
        ]
        noise.append(pair[0] - pair[1])
        if factor == 1:
            regression = (GaussianMean()(q.x_t, t) - y).square().mean((1, 2))
            torch.testing.assert_close(pair[1], regression, msg="the exact head has no loss")
    for other in noise[1:]:
        off = other - noise[0]
        assert off.mean().abs() < 4 * off.std() / n**0.5
        assert off.std() > 0.1


def test_a_distilled_head_learns_the_dependence_between_tokens() -> None:
    """In one transition, where a head on each token would give independent ones."""
    torch.manual_seed(0)
    head = tm.TransformerHead(channels=1, context_width=2, width=32, depth=1).double()
    kernel = exact_kernel(head)
    optimizer = torch.optim.Adam(head.parameters(), 4e-3)
    for step in range(250):
        rng = tm.RandomStreams.derive(0, step, 128)
        rng.dtype = torch.float64
        x = rng.normal(2, 1)
        x_T = (rng.normal(2) * SCALES.sqrt() @ AXES.T)[..., None]
        optimizer.zero_grad()
        kernel.loss(x_T - x, x, torch.zeros(128, dtype=torch.float64), None, rng).mean().backward()
        optimizer.step()
    rng = tm.RandomStreams(range(4000), dtype=torch.float64)
    chain = tm.TransitionMatching(tm.LinearProcess(), tm.Difference(), kernel, tm.Continuous())
    x = chain.sample((2, 1), rng, steps=1, params=tm.SamplingParams(tm.Midpoint(8))).flatten(1)
    assert (x.T.cov() - COVARIANCE).abs().max() < 0.12


class Silent(tm.RandomStreams):
    """Random streams whose normal numbers are 0."""

    def normal(self, *shape: int) -> Tensor:
        return 0 * super().normal(*shape)


@pytest.mark.parametrize("patch", [None, (1, 3), (2, 1)])
def test_the_teacher_sees_the_states_and_times_of_the_head(
    patch: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the layout of the state, for every sample (s, B_0), here with B_0 = 0; it returns s times what it sees."""

    class Echo(ExactHead):
        channels = SHAPE[-1] * (1 if patch is None else patch[0] * patch[1])

        def prepare(self, h: Tensor, t: Tensor | None, cache: object = None) -> tuple[Tensor, ...]:
            return ()

        def forward(self, y: Tensor, s: Tensor, context: tuple[Tensor, ...], r: Tensor | None = None) -> Tensor:
            return y * s[..., None, None]

    backbone, y = small_dit(), data_of("dtm", 3)
    flow = tm.Flow(Echo(), samples_per_token=2)
    kernel = tm.DistilledResidual(backbone, nn.Linear(backbone.width, SHAPE[-1]), flow, patch)

    def teacher(r_s: Tensor, s: Tensor, m: Tensor, x_t: Tensor, *_: object) -> Tensor:
        torch.testing.assert_close(r_s, expand_like(s, m) * (y - m))
        torch.testing.assert_close(x_t, given[0])
        return r_s * expand_like(s, r_s)

    monkeypatch.setattr(kernel, "teacher", teacher)
    given = (data_of("dtm", 3, seed=7), torch.rand(3), condition(3))
    loss = kernel.loss(y, *given, Silent(range(3)))
    torch.testing.assert_close(loss, kernel.mean.loss(y, *given, tm.RandomStreams(range(3))))


def test_the_teacher_is_the_mean_under_the_same_condition() -> None:
    kernel = small_model("dtm-mean", head=JOINT).kernel
    x, b_s, t, s, given = data_of("dtm", 3), data_of("dtm", 3, seed=7), torch.rand(3), torch.rand(3), condition(3)
    m = kernel.mean.mean(x, t, given)
    u = kernel.teacher(b_s, s, m, x, t, given)
    expected = exact_velocity(lambda x, t: kernel.mean.mean(x, t, given), x, t, b_s + s[:, None, None, None] * m, s) - m
    torch.testing.assert_close(u, expected)
    assert not u.requires_grad
    assert (kernel.teacher(b_s, s, m, x, t, condition(3, seed=9)) - u).abs().amax((1, 2, 3)).min() > 1e-4


def test_the_readout_learns_from_the_regression_alone() -> None:
    kernel = small_model("dtm-mean", head=JOINT).kernel
    given = (data_of("dtm", 4), data_of("dtm", 4, seed=7), torch.rand(4), condition(4))
    both = kernel.loss(*given, tm.RandomStreams(range(4)))
    regression = kernel.mean.loss(*given, tm.RandomStreams(range(4)))
    torch.testing.assert_close(*(torch.autograd.grad(x.mean(), kernel.readout.weight) for x in (both, regression)))


class OtherFlow(tm.Flow):
    """A flow that may have another loss."""


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: small_model("dtm-mean", head=SMALL_HEAD.model_copy(update={"distill": True})),
            "needs one s per image",
        ),
        (lambda: small_model("dtm", head=JOINT), "needs a variant with a mean read-out"),
        (lambda: small_model("ar", head=JOINT), "needs a variant with a mean read-out"),
        (lambda: small_model("dtm-mean", head=JOINT.model_copy(update={"token_fraction": 0.5})), "token_fraction to 1"),
        (lambda: tm.DistilledResidual(small_dit(), nn.Identity(), OtherFlow(ExactHead())), "not OtherFlow"),
        (
            lambda: tm.TransitionMatching(
                tm.LinearProcess(), tm.CleanState(), small_model("dtm-mean", head=JOINT).kernel, tm.Continuous()
            ),
            "needs the difference on the linear process",
        ),
    ],
)
def test_what_cannot_be_distilled_is_refused(build, words: str) -> None:  # noqa: ANN001
    with pytest.raises(ValueError, match=words):
        build()


def test_the_finished_model_samples_like_any_other() -> None:
    """With guidance, and the same weights whether it was distilled or not."""
    distilled, plain = (small_model("dtm-mean", head=JOINT.model_copy(update={"distill": d})) for d in (True, False))
    plain.load_state_dict(distilled.state_dict())
    params = tm.SamplingParams(guidance=tm.ClassifierFreeGuidance(condition(1, 2, seed=50), 2.0))
    one, other = (m.sample(SHAPE, tm.RandomStreams(range(3)), condition(3), 4, params) for m in (distilled, plain))
    assert torch.equal(one, other)
