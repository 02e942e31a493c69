"""Autoregressive kernels are causal, and decoding with a cache equals the full pass."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from laws import CODES, SHAPE, awake, condition, data_of, shape_of, small_dit, small_model
from torch import Tensor, nn

import tmatch as tm
from tmatch.guidance import GUIDANCE_SCHEDULES, Branches

N = SHAPE[0] * SHAPE[1]
CAUSAL = ["ar", "artm-3", "fhtm-3", "ar-discrete"]  # the other variants have the same kernels


def hugging_face_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(
        LlamaConfig(
            vocab_size=8, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2,
        )
    )  # fmt: skip


LLAMA: list[tuple[str, Callable[[], nn.Module]]] = [
    ("fhtm-3", lambda: tm.Llama(SHAPE[-1], 24, 2, 2, condition_width=8)),
    ("ar-discrete", lambda: tm.Llama(24, 24, 2, 2, condition_width=8)),
    ("fhtm-2", lambda: tm.HuggingFaceBackbone(hugging_face_llama(), SHAPE[-1], condition_width=8)),
]
EVERY = pytest.mark.parametrize(
    ("name", "backbone"),
    [(name, lambda: None) for name in CAUSAL] + LLAMA,
    ids=[*CAUSAL, "fhtm-3 on Llama", "ar-discrete on Llama", "fhtm-2 on a Hugging Face Llama"],
)


def causal_model(name: str, backbone: Callable[[], nn.Module | None]) -> tm.Model:
    torch.manual_seed(1)
    return small_model(name, backbone=backbone())


def times_of(name: str) -> tuple[float, ...]:
    """The times of one call of the kernel: a whole path, or the last transition."""
    points = tm.VARIANTS[name].times.points
    return points[-2:] if tm.VARIANTS[name].timed else points


def targets(name: str, batch: int) -> Tensor:
    """Y: a state, or a path of them."""
    if tm.VARIANTS[name].timed:
        return data_of(name, batch)
    return torch.stack([data_of(name, batch, seed) for seed in range(len(times_of(name)) - 1)], dim=1)


def time(name: str, batch: int) -> Tensor | None:
    return torch.full((batch,), times_of(name)[0]) if tm.VARIANTS[name].timed else None


@EVERY
def test_contexts_depend_on_earlier_tokens_only(name: str, backbone: Callable[[], nn.Module | None]) -> None:
    kernel, y = causal_model(name, backbone).kernel, targets(name, 2)
    x_t, given = data_of(name, 2, seed=900), condition(2)
    before = kernel.contexts(y, x_t, time(name, 2), given)
    for j in range(before.shape[1]):
        other = y.flatten(1, -2).clone()
        other[:, j] = (other[:, j] + 1) % CODES
        after = kernel.contexts(other.view(y.shape), x_t, time(name, 2), given)
        changed = (after - before).abs().amax((0, 2)) > 1e-6
        assert not changed[: j + 1].any(), "the context of token j does not depend on token j"
        assert changed[j + 1 :].any() or j + 1 == len(changed), "but later contexts do"


@pytest.mark.parametrize("name", ["ar", "artm-3"])
@pytest.mark.parametrize("how", ["in one pass", "with a cache"])
def test_every_output_depends_on_all_of_the_state_before(name: str, how: str) -> None:
    """The backbone's outputs for X_t, of which the last is a context, and for Y."""
    kernel, y, x_t, given = small_model(name).kernel, data_of(name, 2), data_of(name, 2, seed=900), condition(2)
    backbone_outputs: list[Tensor] = []
    kernel.backbone.register_forward_hook(lambda _, __, h: backbone_outputs.append(h))

    def outputs(x_t: Tensor) -> Tensor:
        backbone_outputs.clear()
        if how == "in one pass":
            kernel.contexts(y, x_t, torch.zeros(2), given)
        else:
            times = torch.tensor(times_of(name))
            kernel.sample(x_t, *times, given, tm.RandomStreams([0, 1]), tm.SamplingParams())
        return torch.cat(backbone_outputs, dim=1)

    with torch.no_grad():
        before = outputs(x_t)
        for j in range(N):
            other = x_t.flatten(1, -2).clone()
            other[:, j] += 1
            after = outputs(other.view(x_t.shape))
            assert ((after - before).abs().amax((0, 2)) > 1e-6).all()


@pytest.mark.parametrize("prefix", [0, 5])
def test_a_prefix_attends_to_itself_and_not_to_later_tokens(prefix: int) -> None:
    f, x, t, given = awake(small_dit()), torch.randn(2, 9, 4), torch.rand(2), condition(2)
    before = f(x, t, given, prefix=prefix)
    for j in range(9):
        other = x.clone()
        other[:, j] += 1
        touched = (f(other, t, given, prefix=prefix) - before).abs().amax((0, 2)) > 1e-6
        assert touched.tolist() == [i >= j or (i < prefix and j < prefix) for i in range(9)]


class Recording(tm.TokenDistribution):
    """A distribution that records its contexts, and returns the tokens of the `oracle` if there is one."""

    def __init__(self, distribution: tm.TokenDistribution, oracle: Tensor | None = None) -> None:
        super().__init__()
        self.distribution, self.oracle = distribution, oracle
        self.head, self.channels = distribution.head, distribution.channels
        self.seen: list[Tensor] = []

    def embed(self, b: Tensor) -> Tensor:
        return self.distribution.embed(b)

    def loss(self, b: Tensor, h: Tensor, t: Tensor | None, rng: tm.RandomStreams) -> Tensor:
        return self.distribution.loss(b, h, t, rng)

    def base_noise(self, rng: tm.RandomStreams, tokens: int) -> Tensor:
        return self.distribution.base_noise(rng, tokens)

    def nfe(self, params: tm.SamplingParams) -> int | None:
        return self.distribution.nfe(params)

    def forward(self, noise, h, t, params, branches, cache=None):  # noqa: ANN001, ANN201
        self.seen.append(h)
        if self.oracle is None:
            return self.distribution(noise, h, t, params, branches, cache)
        return self.oracle[:, len(self.seen) - 1 :][:, :1]


GUIDED = tm.ClassifierFreeGuidance(condition(1, length=1, seed=99), 3.0)


@EVERY
@pytest.mark.parametrize("guidance", [tm.NoGuidance(), GUIDED], ids=["plain", "guided"])
@pytest.mark.parametrize("batch", [1, 3])
def test_decoding_with_a_cache_equals_the_full_pass(
    name: str, backbone: Callable[[], nn.Module | None], guidance: tm.Guidance, batch: int
) -> None:
    model, given, rng = causal_model(name, backbone), condition(batch), tm.RandomStreams(range(batch))
    kernel, x_t = model.kernel, data_of(name, batch, seed=900)
    kernel.distribution = recording = Recording(kernel.distribution)
    t = torch.tensor(times_of(name)[0]) if tm.VARIANTS[name].timed else None
    with torch.no_grad():
        states = list(kernel.states(x_t, times_of(name), t, given, rng, tm.SamplingParams(guidance=guidance)))
        y = torch.stack(states, dim=1) if t is None else states[0]
        branches = guidance.at(0.0, given, keep_all=True)
        x, times, conditions = branches.inputs(x_t, t)
        full = kernel.contexts(branches.stack(y), x, times, conditions)
    torch.testing.assert_close(torch.cat(recording.seen, dim=1), full, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("schedule", [None, tm.HeadSchedule(1), tm.HeadSchedule(1, "time")], ids=str)
@pytest.mark.parametrize("name", ["ar", "artm-3", "fhtm-3"])
def test_guided_samples_with_a_cache_are_those_of_the_definition(name: str, schedule: tm.HeadSchedule | None) -> None:
    """Written out: contexts by the full pass, then Euler steps on the guided and rescaled velocity of each token."""
    model, given, null = small_model(name), condition(2), condition(1, length=1, seed=99)
    kernel, x_t, times = model.kernel, data_of(name, 2, seed=900), times_of(name)
    t = torch.tensor(times[0]) if tm.VARIANTS[name].timed else None
    guidance = tm.ClassifierFreeGuidance(null, 3.0, (0.2, 0.95), GUIDANCE_SCHEDULES["rising"], rescale=0.7)
    params = tm.SamplingParams(tm.Euler(5), guidance, head_schedule=schedule)
    with torch.no_grad():
        states = list(kernel.states(x_t, times, t, given, tm.RandomStreams([0, 1]), params))
        y = torch.stack(states, dim=1) if t is None else states[0]
        x, moments, conditions = Branches((given, null), (1.0, 0.0)).inputs(x_t, t)
        contexts = kernel.contexts(torch.cat([y, y]), x, moments, conditions)
        rng, tokens = tm.RandomStreams([0, 1]), []
        for state, (begin, end) in enumerate(pairwise(times)):
            noise = kernel.distribution.base_noise(rng, N)
            for i in range(N):
                h = contexts[:, state * N + i, None, None]
                now, b, head = begin + (end - begin) * i / N, noise[:, i, None, None], kernel.head
                known = 0 if schedule is None else i / N if schedule.over == "tokens" else now
                w, steps = 1 + 2 * now * (0.2 <= now <= 0.95), round(5 - 4 * known)
                for k in range(steps):
                    u = head(torch.cat([b, b]), torch.tensor(k / steps), head.prepare(h, moments))
                    v = w * u[:2] + (1 - w) * u[2:]
                    b = b + v * (0.3 + 0.7 * u[:2].norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True)) / steps
                tokens.append(b[:, 0, 0])
    torch.testing.assert_close(y.flatten(1, -2), torch.stack(tokens, dim=1), atol=1e-4, rtol=1e-4)


@EVERY
def test_an_oracle_regenerates_the_data_with_the_loss_of_teacher_forcing(
    name: str, backbone: Callable[[], nn.Module | None]
) -> None:
    """Right tokens make the right state, and their loss with the cache equals that of training."""
    model, y, given = causal_model(name, backbone), targets(name, 3), condition(3)
    kernel, x_t = model.kernel, data_of(name, 3, seed=900)
    distribution, t = kernel.distribution, time(name, 3)
    kernel.distribution = recording = Recording(distribution, oracle=y.flatten(1, -2))
    with torch.no_grad():
        states = list(
            kernel.states(
                x_t, times_of(name), None if t is None else t[0], given, tm.RandomStreams(range(3)), tm.SamplingParams()
            )
        )
        decoded = distribution.loss(y.flatten(1, -2), torch.cat(recording.seen, dim=1), t, tm.RandomStreams(range(3)))
        taught = distribution.loss(y.flatten(1, -2), kernel.contexts(y, x_t, t, given), t, tm.RandomStreams(range(3)))
    assert torch.equal(torch.stack(states, dim=1).view(y.shape), y)
    torch.testing.assert_close(decoded, taught, atol=1e-5, rtol=1e-5)


@EVERY
def test_each_token_costs_one_evaluation_and_is_read_once(name: str, backbone: Callable[[], nn.Module | None]) -> None:
    model, lengths = causal_model(name, backbone), []
    steps = len(tm.VARIANTS[name].times.points) - 1
    model.kernel.backbone.register_forward_hook(lambda _, inputs, __: lengths.append(inputs[0].shape[1]))
    drawn = tm.generate(model, shape_of(name), [0, 1], condition(2))
    assert drawn.evaluations.backbone == steps * N
    assert lengths.count(N) == (steps if tm.VARIANTS[name].timed else 0), "X_t once per transition"
    assert set(lengths) <= {1, N}, "then one token at a time"


def test_invalid_combinations_are_rejected() -> None:
    dit, flow = small_dit(), tm.Flow(tm.FlowHead(4, 24, 24, 2))
    times = tm.Grid.exponential(3)
    with pytest.raises(ValueError, match="dependent=True for the paper's ablation"):
        tm.TransitionMatching(tm.LinearProcess(), tm.NextState(), tm.Autoregressive(dit, flow), times)
    tm.TransitionMatching(tm.LinearProcess(), tm.NextState(), tm.Autoregressive(dit, flow, dependent=True), times)
    kernel = tm.FullHistory(dit, flow, channels=4)
    with pytest.raises(ValueError, match="use FullHistoryMatching"):
        tm.TransitionMatching(tm.IndependentLinearProcess(), tm.NextState(), kernel, times)
    with pytest.raises(ValueError, match="reads no time: use a Llama"):
        tm.build("fhtm-3", dit, 4)
    with pytest.raises(ValueError, match="reads the time: use a DiT"):
        tm.build("artm-3", tm.Llama(4, 24, 2, 2), 4)
    with pytest.raises(ValueError, match="4 channels per token, but the state has 5"):
        small_model("artm-3").loss(torch.zeros(1, 2, 3, 5), tm.RandomStreams([0]), condition(1))
    with pytest.raises(ValueError, match="1 channels per token, but the state has 4"):
        small_model("ar-discrete").sample(SHAPE, tm.RandomStreams([0]), condition(1))
    with pytest.raises(ValueError, match="MLP has no KV cache"):
        tm.Autoregressive(tm.MLP((2,), 4), flow)
    with pytest.raises(ValueError, match=r"takes the 3 steps of its training.*not 4"):
        small_model("fhtm-3").sample(SHAPE, tm.RandomStreams([0]), condition(1), steps=4)
    with pytest.raises(ValueError, match="cannot start from a given state"):
        small_model("fhtm-3").sample(SHAPE, tm.RandomStreams([0]), condition(1), start=torch.zeros(1, *SHAPE))
    with pytest.raises(ValueError, match="needs the default sampler"):
        small_model("fhtm-3").sample(SHAPE, tm.RandomStreams([0]), condition(1), sampler=tm.RestartSampler())
    with pytest.raises(ValueError, match=r"neither head\.patch"):
        small_model("artm-3", head=tm.HeadConfig(width=24, depth=2, patch=(1, 3)))
    with pytest.raises(ValueError, match="NextState parametrization and a FullHistory kernel"):
        tm.FullHistoryMatching(tm.LinearProcess(), tm.Difference(), tm.ParallelFlow(dit, flow), times)


@pytest.mark.parametrize(("name", "last"), [("artm-3", False), ("fhtm-3", False), ("martm-3", True)])
def test_time_advances_within_transitions_for_guidance_and_partial_states(name: str, last: bool) -> None:
    """Guidance sees the time before a token, and with masks, as in MAR, the time after an iteration."""
    asked = []

    class Listening(tm.NoGuidance):
        def at(self, progress: float, condition: tm.Condition | None, keep_all: bool = False) -> Branches:
            asked.append(progress)
            return super().at(progress, condition)

    drawn = tm.generate(
        small_model(name), SHAPE, [0], condition(1), params=tm.SamplingParams(guidance=Listening()), keep_path=True
    )
    moments = [snapshot.t for snapshot in drawn.path]
    assert moments == sorted(set(moments)), "each time once"
    assert asked == sorted(asked)
    within = [torch.linspace(t, u, N + 1) for t, u in pairwise((0, 0.5, 0.75, 1))]  # equal times between tokens
    expected = torch.cat([times[1:] if last else times[:-1] for times in within])
    torch.testing.assert_close(torch.tensor(asked).unique(), expected)


@pytest.mark.parametrize("name", ["ar", "artm-3", "fhtm-3", "ar-discrete"])
def test_each_token_is_guided_as_the_schedule_says_at_its_time(name: str) -> None:
    """Rising guidance: the first token of the path is sampled without, and each later one with more."""
    model, times = small_model(name), tm.VARIANTS[name].times.points
    used: list[float] = []
    model.kernel.distribution.register_forward_pre_hook(lambda _, args: used.append(args[4].weights[0]))
    guidance = tm.ClassifierFreeGuidance(condition(1, seed=99), 5.0, schedule=GUIDANCE_SCHEDULES["rising"])
    tm.generate(model, shape_of(name), [0], condition(1), params=tm.SamplingParams(guidance=guidance))
    progress = torch.cat([torch.linspace(t, u, N + 1)[:-1] for t, u in pairwise(times)])
    torch.testing.assert_close(torch.tensor(used), 1 + 4 * progress)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("how", ["in one pass", "with a cache"])
def test_every_token_has_a_position_of_its_own(name: str, how: str) -> None:
    """State, row and column: else a DiT could not tell the states of a sequence apart."""
    kernel, y, x_t, seen = small_model(name).kernel, targets(name, 1), data_of(name, 1, seed=900), []
    kernel.backbone.register_forward_pre_hook(lambda *args: seen.append(args[2]["positions"]), with_kwargs=True)
    with torch.no_grad():
        if how == "in one pass":
            kernel.contexts(y, x_t, time(name, 1), condition(1))
        else:
            t = None if time(name, 1) is None else time(name, 1)[0]
            list(kernel.states(x_t, times_of(name), t, condition(1), tm.RandomStreams([0]), tm.SamplingParams()))
    positions = torch.cat(seen)
    assert len(positions.unique(dim=0)) == len(positions)
    before = [0] * len(kernel.prefix(x_t).positions)
    numbers = [k for k in range(1, len(times_of(name))) for _ in range(N)]
    assert positions[:, 0].tolist() == [*before, *numbers[:-1]], "states are numbered; the last token is not read"


def test_the_tokens_of_a_state_have_noise_of_their_own() -> None:
    model, noise = small_model("artm-3"), []
    model.kernel.distribution.register_forward_pre_hook(lambda _, args: noise.append(args[0]))
    model.sample(SHAPE, tm.RandomStreams(range(300)), condition(300))
    correlation = torch.corrcoef(torch.cat(noise, dim=1)[..., 0].T)
    assert correlation.shape == (3 * N, 3 * N)
    assert correlation.fill_diagonal_(0).abs().max() < 5 / 300**0.5


def test_the_loss_of_a_full_history_is_that_of_its_states() -> None:
    """Each state has a loss, which depends on the states up to it; the last state is the data."""
    model, x_T, given = small_model("fhtm-3"), data_of("fhtm-3", 2), condition(2)
    paths: list[Tensor] = []
    losses = model.kernel.losses
    model.kernel.losses = lambda path, *rest: (paths.append(path), losses(path, *rest))[1]
    together = model.loss(x_T, tm.RandomStreams([0, 1]), given)
    (path,) = paths
    assert torch.equal(path[:, -1], x_T)
    each = losses(path, given, tm.RandomStreams([2, 3]))
    for k in range(3):
        other = path.clone()
        other[:, k] += 1
        changed = (losses(other, given, tm.RandomStreams([2, 3])) - each).abs() > 1e-6
        assert changed.tolist() == [[state >= k for state in range(3)]] * 2
    times = [model.times.nearest(t) for t in (0.0, 0.5, 0.75)]
    apart = torch.stack([model.loss(x_T, tm.RandomStreams([0, 1]), given, t) for t in times])
    torch.testing.assert_close(apart.mean(0), together)
    assert (apart.diff(dim=0).abs() > 1e-3).all(), "a fixed time chooses one of them"


@EVERY
def test_guidance_on_an_interval_keeps_both_caches(name: str, backbone: Callable[[], nn.Module | None]) -> None:
    """Outside its interval the null branch has no weight but still reads every token."""
    null = condition(1, length=1, seed=99)
    always, late = (tm.ClassifierFreeGuidance(null, 3.0, interval=span) for span in ((0.0, 1.0), (0.4, 1.0)))
    seen = []
    for guidance in (always, late):
        model = causal_model(name, backbone)
        model.kernel.distribution = recording = Recording(
            model.kernel.distribution, oracle=targets(name, 2).flatten(1, -2)
        )
        t = torch.tensor(times_of(name)[0]) if tm.VARIANTS[name].timed else None
        with torch.no_grad():
            x_t = data_of(name, 2, seed=900)
            list(
                model.kernel.states(
                    x_t, times_of(name), t, condition(2), tm.RandomStreams([0, 1]), tm.SamplingParams(guidance=guidance)
                )
            )
        seen.append(torch.cat(recording.seen, dim=1))
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize(("name", "backbone"), LLAMA, ids=["llama", "codes", "hugging face"])
def test_every_parameter_gets_a_gradient_on_every_backbone(name: str, backbone: Callable[[], nn.Module | None]) -> None:
    model = causal_model(name, backbone)
    model.loss(data_of(name, 8), tm.RandomStreams(range(8)), condition(8)).mean().backward()
    for parameter, value in model.named_parameters():
        assert not value.requires_grad or (value.grad is not None and value.grad.abs().sum() > 0), parameter


@pytest.mark.parametrize(("name", "backbone"), LLAMA, ids=["llama", "codes", "hugging face"])
def test_padding_of_the_text_takes_no_position(name: str, backbone: Callable[[], nn.Module]) -> None:
    model, y = causal_model(name, backbone), data_of(name, 2)
    padded = condition(2).padded(7)
    padded.tokens[:, 3:] = 7.0
    losses = [model.loss(y, tm.RandomStreams([0, 1]), given) for given in (condition(2), padded)]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    drawn = [tm.generate(model, shape_of(name), [0, 1], given).x for given in (condition(2), padded)]
    torch.testing.assert_close(*drawn, atol=1e-4, rtol=1e-4)


def test_each_transition_reports_three_partial_states() -> None:
    model = small_model("fhtm-3")
    path = tm.generate(model, SHAPE, [0, 1], condition(2), keep_path=True).path
    kinds = [snapshot.kind for snapshot in path]
    assert kinds == ["start", *(["partial"] * 3 + ["transition"]) * 3]
    first, whole = path[1].x_t.flatten(1, 2), path[4].x_t.flatten(1, 2)
    assert torch.equal(first[:, :2], whole[:, :2]), "sampled tokens stay"
    assert not torch.equal(first[:, 3:], whole[:, 3:]), "the others show the state before"


@EVERY
def test_samples_can_enter_autograd(name: str, backbone: Callable[[], nn.Module | None]) -> None:
    """Sampling uses inference mode, whose tensors autograd rejects; states must be normal tensors."""
    drawn = tm.generate(causal_model(name, backbone), shape_of(name), [0], condition(1), keep_path=True)
    weight = torch.ones((), requires_grad=True)
    for state in (drawn.x, *(snapshot.x_t for snapshot in drawn.path)):
        (weight * state).sum().backward()
