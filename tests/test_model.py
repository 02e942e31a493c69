"""Properties of every variant."""

from pathlib import Path

import numpy as np
import pytest
import torch
from laws import SHAPE, SMALL_HEAD, awake, condition, data_of, fresh_model, shape_of, small_dit, small_model, steps_of
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

import tmatch as tm
from tmatch.variants import VARIANTS

ALL = pytest.mark.parametrize("name", VARIANTS)
PATCHED = tm.HeadConfig(width=24, depth=2, patch=(1, 3), samples_per_token=2, density="logit-normal")
JOINT = tm.HeadConfig(width=24, depth=2, kind="transformer", samples_per_token=2)
DISTILLED = JOINT.model_copy(update={"distill": True})
HEAD_NAMES = {"token": SMALL_HEAD, "patch": PATCHED, "joint": JOINT, "distilled": DISTILLED}
UNEVEN = tm.HeadConfig(width=8, depth=1, patch=(1, 2))
WITH_HEADS = pytest.mark.parametrize(
    ("name", "head"),
    [(name, SMALL_HEAD) for name in VARIANTS]
    + [(name, PATCHED) for name in VARIANTS if VARIANTS[name].evaluations == "T"]
    + [("dtm", JOINT), ("dtm-mean", JOINT), ("dtm-mean", DISTILLED)],
    ids=lambda value: value if isinstance(value, str) else next(k for k, v in HEAD_NAMES.items() if v is value),
)


def data(batch: int) -> torch.Tensor:
    return tm.RandomStreams(range(500, 500 + batch)).normal(*SHAPE)


@WITH_HEADS
def test_every_parameter_gets_a_gradient(name: str, head: tm.HeadConfig) -> None:
    model = small_model(name, head=head)
    model.loss(data_of(name, 8), tm.RandomStreams(range(8)), condition(8)).mean().backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None, parameter
        assert value.grad.isfinite().all(), parameter
        assert value.grad.abs().sum() > 0, parameter


@WITH_HEADS
def test_the_loss_of_an_image_does_not_depend_on_its_batch(name: str, head: tm.HeadConfig) -> None:
    model, x, given = small_model(name, head=head), data_of(name, 5), condition(5)
    together = model.loss(x, tm.RandomStreams(range(5)), given)
    assert together.shape == (5,)
    for k in (0, 4):
        alone = model.loss(x[k : k + 1], tm.RandomStreams([k]), given[k : k + 1])
        torch.testing.assert_close(alone[0], together[k], atol=1e-5, rtol=1e-5)


@WITH_HEADS
def test_a_sample_does_not_depend_on_its_batch(name: str, head: tm.HeadConfig) -> None:
    model, given = small_model(name, head=head), condition(6)
    params = tm.SamplingParams(solver=tm.Heun(3), guidance=tm.ClassifierFreeGuidance(condition(1, 2, seed=50), 2.0))
    runs = [
        tm.generate(model, shape_of(name), range(6), given, steps=steps_of(name), params=params, batch_size=size).x
        for size in (6, 1)
    ]
    scale = runs[0].abs().max().clamp(min=1)  # untrained, epsilon-prediction ends at 1 / alpha_0 = 150
    assert (runs[0] - runs[1]).abs().max() < 1e-5 * scale
    assert (runs[0][0] - runs[0][1]).abs().max() > 0.1


@ALL
def test_save_and_load_give_the_same_samples(name: str, tmp_path: Path) -> None:
    model, other = small_model(name), fresh_model(name)
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    first, second = (
        tm.generate(m, shape_of(name), [1, 2], condition(2), steps=steps_of(name)).x for m in (model, other)
    )
    assert torch.equal(first, second)


@ALL
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_states_stay_in_float32_or_wider(name: str, dtype: torch.dtype) -> None:
    """A bfloat16 state would lose small steps."""
    model, seen = small_model(name).to(dtype), []
    model.kernel.backbone.register_forward_hook(lambda _, inputs, h: seen.append((inputs[0].dtype, h.dtype)))
    given, wide = condition(2), torch.promote_types(dtype, torch.float32)
    guidance = tm.ClassifierFreeGuidance(given[:1], 2.0)
    loss = model.loss(data_of(name, 2).to(wide), tm.RandomStreams([0, 1], dtype=wide), given)
    params = tm.SamplingParams(guidance=guidance)
    x = tm.generate(model, shape_of(name), [0, 1], given, steps=steps_of(name), params=params).x
    assert loss.dtype == x.dtype == wide
    assert {h for _, h in seen} == {dtype}
    if not VARIANTS[name].embeds:  # these embed tokens in the dtype of the network
        assert {x for x, _ in seen} == {wide}


@pytest.mark.parametrize("name", ["fm", "dtm"])
def test_a_bfloat16_network_takes_many_steps_like_a_float32_one(name: str) -> None:
    fine, coarse = small_model(name), small_model(name)
    coarse.load_state_dict(fine.state_dict())
    coarse.to(torch.bfloat16)
    first, second = (tm.generate(m, SHAPE, range(4), condition(4), steps=64).x for m in (fine, coarse))
    assert (first - second).abs().max() < 0.03 * first.abs().max()


@ALL
def test_sampling_leaves_no_graph_and_no_random_state(name: str) -> None:
    model = small_model(name)
    state = torch.get_rng_state()
    x = model.sample(shape_of(name), tm.RandomStreams([0]), condition(1), steps=steps_of(name))
    model.loss(data_of(name, 1), tm.RandomStreams([0]), condition(1))
    assert not x.requires_grad
    assert torch.equal(torch.get_rng_state(), state), "the library never uses the global generator"


@pytest.mark.parametrize("name", [name for name, row in VARIANTS.items() if row.timed])
def test_networks_see_the_time_of_each_transition(name: str) -> None:
    """During sampling, backbone and head see exactly the times of the grid."""
    model = small_model(name)
    embeddings = [model.kernel.backbone.time, getattr(model.kernel.head, "t_in", None)]
    visited = model.grid(steps_of(name))[:-1].float()
    for embedding in filter(None, embeddings):
        seen: list[Tensor] = []
        embedding.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0].flatten().unique()))
        model.sample(shape_of(name), tm.RandomStreams(range(3)), condition(3), steps=steps_of(name))
        assert all(len(t) == 1 for t in seen)
        torch.testing.assert_close(torch.cat(seen).unique_consecutive(), visited)


@ALL
def test_every_variant_can_be_built_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = fresh_model(name)
        tm.SamplingParams(tm.RK4(4))
    assert all(p.is_meta for p in model.parameters())
    assert model.grid().device.type == "cpu"


def test_the_head_is_built_as_configured() -> None:
    kernel = small_model("dtm", head=PATCHED).kernel
    assert isinstance(kernel, tm.ParallelFlow)
    assert (kernel.distribution.samples_per_token, kernel.distribution.density) == (2, tm.LogitNormal())
    assert (kernel.head.channels, kernel.head_patch) == (12, (1, 3))


@ALL
def test_a_head_is_as_wide_as_its_backbone_by_default(name: str) -> None:
    heads = (tm.HeadConfig(depth=1), tm.HeadConfig(width=24, depth=1))  # the backbone's width is 24
    default, explicit = ([p.shape for p in fresh_model(name, head=head).parameters()] for head in heads)
    assert default == explicit


def test_integer_and_bfloat16_states_are_cast_to_float32() -> None:
    model, given = small_model("fm"), condition(2)
    whole = (10 * data(2)).round()
    for dtype in (torch.int64, torch.bfloat16):
        cast = whole.to(dtype)
        torch.testing.assert_close(
            model.loss(cast, tm.RandomStreams([0, 1]), given), model.loss(cast.float(), tm.RandomStreams([0, 1]), given)
        )
        runs = [model.sample(SHAPE, tm.RandomStreams([0, 1]), given, [0.5, 1], start=x) for x in (cast, cast.float())]
        assert torch.equal(*runs)


def test_sampling_disables_dropout() -> None:
    class Dropping(nn.Module):
        width = 8

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.dropout = nn.Linear(4, 8), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor, t: torch.Tensor, condition: None = None) -> torch.Tensor:
            return self.dropout(self.linear(x))

    model = awake(tm.build("fm", Dropping(), 4))
    model.kernel.readout.eval()
    assert torch.equal(*(tm.generate(model, SHAPE, [0], steps=3).x for _ in range(2)))
    assert model.training
    assert model.kernel.backbone.dropout.training
    assert not model.kernel.readout.training


def test_discrete_training_includes_time_zero() -> None:
    model, seen = small_model("dtm-32"), []
    model.kernel.backbone.register_forward_hook(lambda _, inputs, __: seen.append(inputs[1]))
    model.loss(data(1).expand(400, *SHAPE), tm.RandomStreams(range(400)), condition(1).repeated(400))
    assert sorted(set((seen[0] * 32).round().int().tolist())) == list(range(32))


def test_flow_matching_is_eulers_method() -> None:
    model, given, rng = small_model("fm"), condition(4), tm.RandomStreams(range(4))
    x_0 = rng.normal(*SHAPE)
    grid = [0, 0.1, 0.35, 0.8, 1]

    def velocity(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model.kernel.mean(x, t.float().expand(4), given)

    sampled = model.sample(SHAPE, rng, given, steps=grid, start=x_0)
    torch.testing.assert_close(sampled, tm.Euler(grid).solve(velocity, x_0), atol=1e-5, rtol=1e-5)


def test_flow_matching_regresses_the_difference() -> None:
    """The loss, written out from the same noise."""
    model, x_T, given = small_model("fm"), data(6), condition(6)
    loss = model.loss(x_T, tm.RandomStreams(range(6)), given)
    rng = tm.RandomStreams(range(6))
    t, x_0 = rng.uniform(), rng.normal(*SHAPE)
    w = t[:, None, None, None]
    u = model.kernel.mean((1 - w) * x_0 + w * x_T, t, given)
    torch.testing.assert_close(loss, (u - (x_T - x_0)).square().mean((1, 2, 3)))


def test_dtm_flow_matches_the_difference() -> None:
    """The paper's listing (with normal noise, and one s per token), from the same noise."""
    model, x_T, given = small_model("dtm"), data(6), condition(6)
    loss = model.loss(x_T, tm.RandomStreams(range(6)), given)
    rng = tm.RandomStreams(range(6))
    t, x_0 = rng.uniform(), rng.normal(*SHAPE)
    w = t[:, None, None, None]
    y = x_T - x_0
    h_t = model.kernel.backbone((1 - w) * x_0 + w * x_T, t, given)
    y, h_t = (x.flatten(1, 2).unsqueeze(1) for x in (y, h_t))
    y_0, s = rng.normal(*y.shape[1:]), rng.uniform(*y.shape[1:-1])
    y_s = (1 - s[..., None]) * y_0 + s[..., None] * y
    u = model.kernel.head(y_s, s, model.kernel.head.prepare(h_t, t))
    torch.testing.assert_close(loss, (u - (y - y_0)).square().mean((1, 2, 3)))


def test_artm_flow_matches_the_next_state_token_by_token() -> None:
    """The paper's listing (with normal noise and t / T), from the same noise: h_{i-1} is the context of token i."""
    model, x_T, given = small_model("artm-3"), data(6), condition(6)
    loss = model.loss(x_T, tm.RandomStreams(range(6)), given)
    rng = tm.RandomStreams(range(6))
    step, n = (rng.uniform() * 3).long(), SHAPE[0] * SHAPE[1]
    t, t_next = (torch.tensor([0.0, 0.5, 0.75, 1.0])[step + k] for k in (0, 1))
    weights = (time[:, None, None, None] for time in (t, t_next))
    x_t, x_next = (((1 - w) * rng.normal(*SHAPE) + w * x_T).flatten(1, 2) for w in weights)
    places = torch.tensor([[k, *divmod(i, SHAPE[1])] for k in (0, 1) for i in range(n)])
    h = model.kernel.backbone(torch.cat((x_t, x_next), dim=1), t, given, positions=places, prefix=n)[:, n - 1 : -1]
    y, y_0, s = x_next[:, None], rng.normal(1, n, SHAPE[2]), rng.uniform(1, n)
    y_s = (1 - s[..., None]) * y_0 + s[..., None] * y
    u = model.kernel.head(y_s, s, model.kernel.head.prepare(h[:, None], t))
    torch.testing.assert_close(loss, (u - (y - y_0)).square().mean((1, 2, 3)))


@pytest.mark.parametrize("variance", ["beta-tilde", "beta"])
def test_ddpm_takes_the_step_of_ho_et_al(variance: str) -> None:
    """mu = (x - beta / sqrt(1 - abar) eps) / sqrt(1 - beta), variance beta-tilde or beta (Eq. 11, Section 3.2)."""
    schedule, epsilon, n = tm.VariancePreserving(), 0.6, 40_000

    class Epsilon(nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor, condition: None) -> torch.Tensor:
            return torch.full_like(x, epsilon)

    process = tm.DiffusionProcess(schedule)
    std = tm.unit_data_std(process, tm.NoiseState()) if variance == "beta" else None
    kernel = tm.GaussianKernel(Epsilon(), nn.Identity(), std)
    model = tm.TransitionMatching(process, tm.NoiseState(), kernel, tm.Continuous())
    t = torch.tensor([0.5, 0.55], dtype=torch.float64)
    start = torch.full((n, 1, 1), 0.7, dtype=torch.float64)
    x = model.sample((1, 1), tm.RandomStreams(range(n), dtype=torch.float64), steps=t.tolist(), start=start).flatten()
    abar, abar_prev = schedule.alpha(t) ** 2
    beta = 1 - abar / abar_prev
    mean = (0.7 - beta / (1 - abar).sqrt() * epsilon) / (1 - beta).sqrt()
    expected = beta if variance == "beta" else (1 - abar_prev) / (1 - abar) * beta
    assert abs(x.mean() - mean) < 5 * (expected / n).sqrt()
    assert abs(x.var() - expected) < 5 * expected * (2 / n) ** 0.5


def broken(given: tm.Condition) -> tm.Condition:
    tokens = given.tokens.clone()
    tokens[0, 0, 0] = torch.nan
    return tm.Condition(tokens, given.mask)


NOT_DATA = (data(2).tolist(), data(2).numpy(), data(2) * 1j, torch.tensor(1.0), None)


def build_mean(process: tm.Process, parametrization: tm.Parametrization, times: tm.Times) -> None:
    tm.TransitionMatching(process, parametrization, tm.MeanKernel(nn.Identity(), nn.Identity()), times)


def loss(name: str, x: Tensor, seeds: range, given: tm.Condition, **options: object) -> Tensor:
    return small_model(name, **options).loss(x, tm.RandomStreams(seeds), given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: build_mean(tm.IndependentLinearProcess(), tm.Difference(), tm.Continuous()),
            "cannot follow Independent",
        ),
        (lambda: build_mean(tm.DiffusionProcess(tm.Cosine()), tm.NextState(), tm.Grid.uniform(4)), "lacks the noise"),
        (lambda: tm.build("dmt", small_dit(), 4), "did you mean 'dtm'"),
        (lambda: tm.build("dtm", small_dit(), 0), "channels must be a positive integer"),
        (lambda: tm.generate(small_model("fm"), SHAPE, [0], condition(1), sampler="ddim"), r"build_sampler\('ddim'\)"),
        (lambda: tm.generate(small_model("fm"), SHAPE, [0], condition(1).tokens), "must be a Condition"),
        (lambda: tm.HeadConfig(kind="mpl"), "did you mean 'mlp'"),
        (lambda: tm.build("fm", nn.Linear(2, 2), 4), "no integer attribute `width`"),
        (lambda: small_model("fm").grid(2.5), "must be a positive integer; got 2.5"),
        (lambda: tm.LogitNormal(std=float("nan")), "positive std"),
        (lambda: tm.VariancePreserving(20, -1), "0 <= beta_min <= beta_max"),
        (lambda: loss("dtm", data(2) * torch.nan, range(2), condition(2)), "x_T contains non-finite"),
        *((lambda x=x: loss("dtm", x, range(2), condition(2)), "x_T must be a tensor") for x in NOT_DATA),
        (lambda: tm.Condition.dense(np.zeros((2, 3, 4))), "condition must be a tensor"),
        (lambda: loss("dtm", data(1), range(1), broken(condition(1))), "condition contains non-finite"),
        (lambda: loss("dtm", data(3), range(2), condition(3)), "2 random streams for 3 images"),
        (lambda: loss("dtm", data(3), range(3), condition(2)), "2 conditions for 3 images"),
        (lambda: loss("dtm", data(2), range(2), torch.tensor([3, 4])), "Embed class labels"),
        (lambda: loss("dtm", torch.zeros(2, 3, 8, 8), range(2), condition(2)), r"Encode images \(NCHW\)"),
        (lambda: loss("dtm", data(1), range(1), condition(1), head=UNEVEN), r"into patches of \(1, 2\)"),
        (lambda: small_model("fm").sample(SHAPE, tm.RandomStreams([0]), condition(1), [0.5, 1]), "pass it as `start`"),
        (
            lambda: small_model("fm").sample(SHAPE, tm.RandomStreams([0]), condition(1), start=data(1)[:, :1]),
            "The starting state has shape",
        ),
        (lambda: small_model("fm").sample((1.0, 4), tm.RandomStreams([0]), condition(1)), "positive integer; got 1.0"),
        (lambda: small_model("fm").sample((2**40, 4), tm.RandomStreams([0]), condition(1)), "at most"),
        (
            lambda: small_model("fm").sample(SHAPE, tm.RandomStreams([0]), condition(1), start=data(1).tolist()),
            "starting state must be a tensor",
        ),
        (
            lambda: tm.generate(awake(tm.build("dtm", small_dit(), 8)), SHAPE, [0], condition(1)),
            "The kernel's sample has shape",
        ),
    ],
)
def test_invalid_input_is_rejected(make, words: str) -> None:  # noqa: ANN001
    with pytest.raises(ValueError, match=words):
        make()


class Pooling(nn.Module):
    """A backbone that returns one vector for all tokens instead of one per token."""

    width, channels = 24, 24

    def forward(self, x: Tensor, t: Tensor, condition: object = None, *, positions: Tensor | None = None) -> Tensor:
        return x.new_ones(len(x), *[1] * (x.ndim - 2), self.width)


@pytest.mark.parametrize("name", ["fm", "dtm", "dtm-mean", "martm-2"])
def test_a_pooling_backbone_is_rejected_in_training(name: str) -> None:
    """Broadcasting would hide the error until sampling."""
    model = tm.build(name, Pooling(), SHAPE[-1], SMALL_HEAD)
    with pytest.raises(ValueError, match=r"one vector per token|has shape"):
        model.loss(data_of(name, 2), tm.RandomStreams(range(2)))


def test_forward_is_the_loss() -> None:
    model, given = small_model("dtm"), condition(2)
    assert torch.equal(
        model(data(2), tm.RandomStreams([0, 1]), given), model.loss(data(2), tm.RandomStreams([0, 1]), given)
    )
