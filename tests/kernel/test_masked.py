import math
from itertools import pairwise

import pytest
import torch
from laws import CODES, SHAPE, awake, condition, data_of, shape_of, small_dit, small_model
from torch import Tensor

import tmatch as tm
from tmatch.distribution.categorical import filter_logits
from tmatch.guidance import Branches
from tmatch.kernel.masked import UnmaskStep, known_counts

N = SHAPE[0] * SHAPE[1]
MASKED = ["mar", "martm-3", "mar-discrete"]  # the other variants have the same kernels
CONDITIONAL = tm.NoGuidance().at(0.0, None)


@pytest.mark.parametrize("iterations", [1, 2, 5, 16, None])
def test_every_iteration_unmasks_tokens_until_none_is_left(iterations: int | None) -> None:
    known = known_counts(16, iterations)
    assert known[0] == 0
    assert known[-1] == 16
    assert all(b > a for a, b in pairwise(known))
    assert len(known) == (iterations or 16) + 1


def test_the_hidden_fraction_follows_the_cosine() -> None:
    known = known_counts(4096, 16)
    for k in range(1, 16):
        assert 1 - known[k] / 4096 == pytest.approx(math.cos(math.pi / 2 * k / 16), abs=1e-3)


def test_masking_ratios_match_the_papers() -> None:
    u = tm.RandomStreams(range(20_000)).uniform()
    gaussian = small_model("mar").kernel.ratio(u)
    assert 0.7 <= gaussian.min() < 0.71
    assert 0.99 < gaussian.max() <= 1
    z = 0.3 / 0.25  # the mean of half a normal, cut at z standard deviations
    density = (1 - math.exp(-(z**2) / 2)) / math.sqrt(2 * math.pi) / (0.5 * math.erf(z / math.sqrt(2)))
    assert gaussian.mean() == pytest.approx(1 - 0.25 * density, abs=0.005)
    for name in ("mar-fluid", "martm-2", "martm-3", "mar-discrete"):
        cosine = small_model(name).kernel.ratio(u)
        assert cosine.mean() == pytest.approx(2 / math.pi, abs=0.01)
        assert cosine.square().mean() == pytest.approx(1 / 2, abs=0.01)


@pytest.mark.parametrize("name", MASKED)
def test_contexts_depend_on_known_tokens_only(name: str) -> None:
    kernel, y, x_t, given = small_model(name).kernel, data_of(name, 2), data_of(name, 2, seed=900), condition(2)
    known = torch.tensor([[True, False, True, False, False, True]] * 2)
    before = kernel.contexts(y, known, x_t, torch.zeros(2), given)
    for j in range(N):
        other = y.flatten(1, -2).clone()
        other[:, j] = (other[:, j] + 1) % CODES
        changed = (kernel.contexts(other.view(y.shape), known, x_t, torch.zeros(2), given) - before).abs() > 1e-6
        assert changed.any() == known[0, j]
        assert changed.amax((0, 2)).all() == known[0, j], "attention is full"


def test_a_known_token_of_zeros_differs_from_a_hidden_one() -> None:
    kernel, y = small_model("martm-2").kernel, torch.zeros(1, *SHAPE)
    known = torch.zeros(1, N, dtype=torch.bool)
    hidden = kernel.contexts(y, known, y, torch.zeros(1), condition(1))
    known[0, 2] = True
    assert not torch.allclose(kernel.contexts(y, known, y, torch.zeros(1), condition(1)), hidden, atol=1e-3)


@pytest.mark.parametrize("name", MASKED)
def test_the_loss_counts_hidden_tokens_only(name: str) -> None:
    model = small_model(name)

    class Share(tm.CosineRatio):
        def __call__(self, u: Tensor) -> Tensor:
            return torch.full_like(u, 1 / 3)

    class Places(torch.nn.Module):
        """The loss of a token is its index, from 1."""

        head = None
        embed, require = staticmethod(model.kernel.distribution.embed), staticmethod(model.kernel.distribution.require)

        def loss(self, b: Tensor, h: Tensor, t: Tensor, rng: tm.RandomStreams) -> Tensor:
            return torch.arange(1.0, N + 1).expand(len(b), -1)

    hidden: list[Tensor] = []
    kernel = model.kernel
    contexts = kernel.contexts
    kernel.contexts = lambda y, known, *rest: (hidden.append(~known), contexts(y, known, *rest))[1]
    kernel.ratio, kernel.distribution = Share(), Places()
    losses = model.loss(data_of(name, 5), tm.RandomStreams(range(5)), condition(5))
    assert hidden[0].sum(1).tolist() == [N // 3] * 5
    torch.testing.assert_close(losses, (torch.arange(1.0, N + 1) * hidden[0]).sum(1) / N)


@pytest.mark.parametrize("name", ["mar", "mar-discrete"])
def test_at_least_the_ratio_is_hidden_and_less_than_a_token_more(name: str) -> None:
    """And every token is hidden as often as any other, in sets that differ between images."""
    model, n, ratios, known = small_model(name), 6000, [], []
    ratio, contexts = model.kernel.ratio, model.kernel.contexts
    model.kernel.ratio = lambda u: (ratios.append(ratio(u)), ratios[-1])[1]
    model.kernel.contexts = lambda y, shown, *rest: (known.append(shown), contexts(y, shown, *rest))[1]
    with torch.no_grad():
        model.loss(data_of(name, 1).expand(n, -1, -1, -1), tm.RandomStreams(range(n)), condition(1).repeated(n))
    hidden = (~known[0]).double()
    extra = hidden.mean(1) - ratios[0].double()
    assert extra.min() > -1e-6
    assert extra.max() < 1 / N
    share = hidden.mean()
    assert ((hidden.mean(0) - share).abs() < 5 * (share * (1 - share) / n).sqrt()).all()
    for count in range(1, N):
        sets = hidden[hidden.sum(1) == count].unique(dim=0)
        assert len(sets) in (0, math.comb(N, count)), "all sets of a size occur"


def test_ratios_stay_in_range() -> None:
    u = tm.RandomStreams(range(5_000)).uniform()
    for mode, std in ((1.0, 0.25), (0.5, 0.1), (0.85, 0.01), (1.2, 0.1)):
        shares = tm.TruncatedGaussianRatio(mode, std)(u)
        assert 0.7 <= shares.min() <= shares.max() <= 1
        assert len(shares.unique()) > 100


def test_the_noise_on_the_confidence_decays_to_zero() -> None:
    model, left = small_model("mar-discrete"), []
    unmask = model.kernel.unmask
    model.kernel.unmask = lambda h, t, step, *rest: (left.append(step.remaining), unmask(h, t, step, *rest))[1]
    params = tm.SamplingParams(unmasking=tm.Unmasking(4, "confidence"))
    model.sample(shape_of("mar-discrete"), tm.RandomStreams(range(2)), condition(2), params=params)
    assert left == [0.75, 0.5, 0.25, 0.0]


def test_confidence_is_noisy_at_first_and_greedy_at_last() -> None:
    """With nearly equal confidences the order is random under noise, and by confidence without."""
    codes = torch.zeros(1, *SHAPE[:-1], 1)

    class Graded(CodeOracle):
        """More confident at later positions."""

        def logits(self, h: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(torch.zeros_like(h[..., 0]).long(), CODES) * (1 + h[..., :1])

    def first(left: float, temperature: float) -> list[int]:
        kernel = tm.MaskedCodes(Places(), Graded(codes), tm.CosineRatio())
        rng, places = tm.RandomStreams(range(400)), torch.arange(float(N)).expand(400, -1)[..., None]
        step = UnmaskStep(torch.zeros(400, N, dtype=torch.bool), torch.zeros(400, N), 0, 1, left)
        params = tm.SamplingParams(
            unmasking=tm.Unmasking(2, "confidence", temperature), codes=tm.CodeSampling(temperature=0)
        )
        new = kernel.unmask(places, None, step, rng, params, Branches((None,), (1.0,)))[1]
        return new.sum(0).tolist()

    greedy = [0] * (N - 1) + [400]
    assert first(0.0, 5.0) == first(1.0, 0.0) == greedy
    some, much = first(0.5, 5.0), first(1.0, 50.0)
    assert max(much) < 1.6 * 400 / N, "nearly uniform"
    assert max(much) < max(some) < 400, "the noise decays"
    assert some[-1] == max(some), "and preserves the most confident"


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_noisy_confidence_unmasks_in_proportion_to_a_power_of_the_probability(temperature: float) -> None:
    """The Gumbel-max trick: the token unmasked first has confidence p with probability p^(1 / temperature) / sum."""
    n, log_p = 20_000, torch.tensor([0.9, 0.5, 0.3, 0.2, 0.1, 0.05]).log()

    class Sure(tm.Categorical):
        def sample_codes(self, u: Tensor, *_: object) -> tuple[Tensor, Tensor]:
            return torch.zeros(*u.shape, 1), log_p.expand_as(u)

    kernel = tm.MaskedCodes(Places(), Sure(CODES, 8, 1), tm.CosineRatio())
    step = UnmaskStep(torch.zeros(n, N, dtype=torch.bool), torch.zeros(n, N), 0, 1, remaining=1.0)
    params = tm.SamplingParams(unmasking=tm.Unmasking(order="confidence", temperature=temperature))
    new = kernel.unmask(torch.zeros(n, N, 1), None, step, tm.RandomStreams(range(n)), params, CONDITIONAL)[1]
    expected = (log_p / temperature).softmax(0)
    assert ((new.float().mean(0) - expected).abs() < 5 * (expected * (1 - expected) / n).sqrt()).all()


class Oracle(tm.TokenDistribution):
    """Returns the true token at each position, which is what the backbone below outputs."""

    def __init__(self, y: Tensor, channels: int) -> None:
        super().__init__()
        self.y, self.head, self.channels = y, None, channels
        self.asked: list[Tensor] = []

    def loss(self, b: Tensor, h: Tensor, t: Tensor | None, rng: tm.RandomStreams) -> Tensor:
        raise AssertionError("an oracle needs no training")

    def base_noise(self, rng: tm.RandomStreams, tokens: int) -> Tensor:
        return rng.uniform(tokens)

    def nfe(self, params: tm.SamplingParams) -> int:
        return 0

    def forward(self, noise, h, t, params, branches, cache=None):  # noqa: ANN001, ANN201
        places = h[..., :1].round().long()
        self.asked.append(places[..., 0])
        return self.y.take_along_dim(places, dim=1)


class Places(torch.nn.Module):
    """A backbone that outputs the index of each token."""

    width = 1

    def forward(self, x: Tensor, t: Tensor, condition: tm.Condition | None = None, *, positions: Tensor) -> Tensor:
        return (positions[..., 1] * SHAPE[1] + positions[..., 2]).float()[..., None]


@pytest.mark.parametrize("order", ["random", "raster", "confidence"])
@pytest.mark.parametrize("iterations", [1, 4, None])
@pytest.mark.parametrize("transitions", [1, 3])
def test_an_oracle_regenerates_the_data(order: str, iterations: int | None, transitions: int) -> None:
    x_T = data_of("mar", 3)  # not the noise that sampling starts from
    distribution = Oracle(x_T.flatten(1, 2), SHAPE[-1])
    kernel = tm.Masked(Places(), distribution, SHAPE[-1], 8, tm.CosineRatio())
    model = tm.TransitionMatching(tm.IndependentLinearProcess(), tm.NextState(), kernel, tm.Grid.uniform(transitions))
    params = tm.SamplingParams(unmasking=tm.Unmasking(iterations, order))
    assert torch.equal(model.sample(SHAPE, tm.RandomStreams(range(3)), params=params), x_T)
    drawn = torch.cat(distribution.asked, dim=1)
    assert len(distribution.asked) == transitions * (iterations or N)
    for one in drawn.split(N, dim=1):
        assert torch.equal(one.sort(1).values, torch.arange(N).expand(3, -1)), "each token once per transition"
        assert torch.equal(one, torch.arange(N).expand(3, -1)) == (order == "raster" or iterations == 1)


class CodeOracle(tm.Categorical):
    """Certain of the code at each position."""

    def __init__(self, codes: Tensor) -> None:
        super().__init__(CODES, channels=8, width=1)
        self.truth = codes.flatten(1).long()

    def logits(self, h: Tensor) -> Tensor:
        k = self.truth.take_along_dim(h[..., 0].round().long(), dim=1)
        return 100 * torch.nn.functional.one_hot(k, CODES).float()


@pytest.mark.parametrize("order", ["random", "raster", "confidence"])
@pytest.mark.parametrize("iterations", [1, 4, None])
def test_an_oracle_regenerates_codes(order: str, iterations: int | None) -> None:
    codes = data_of("mar-discrete", 3)
    kernel = tm.MaskedCodes(Places(), CodeOracle(codes), tm.CosineRatio())
    model = tm.TransitionMatching(tm.IndependentLinearProcess(), tm.NextState(), kernel, tm.Grid.uniform(1))
    params = tm.SamplingParams(unmasking=tm.Unmasking(iterations, order))
    assert torch.equal(model.sample(shape_of("mar-discrete"), tm.RandomStreams(range(3)), params=params), codes)


@pytest.mark.parametrize("name", ["mar", "martm-3"])
def test_every_context_depends_on_the_state_before(name: str) -> None:
    kernel, y, x_t, given = small_model(name).kernel, data_of(name, 2), data_of(name, 2, seed=900), condition(2)
    known = torch.tensor([True, False] * (N // 2)).expand(2, -1)
    before = kernel.contexts(y, known, x_t, torch.zeros(2), given)
    for j in range(N):
        other = x_t.flatten(1, -2).clone()
        other[:, j] += 1
        after = kernel.contexts(y, known, other.view(x_t.shape), torch.zeros(2), given)
        assert ((after - before).abs().amax((0, 2)) > 1e-6).all()


@pytest.mark.parametrize("order", ["random", "raster", "confidence"])
@pytest.mark.parametrize("name", MASKED)
def test_samples_do_not_depend_on_the_batch_in_any_order(name: str, order: str) -> None:
    model, given = small_model(name), condition(4)
    params = tm.SamplingParams(unmasking=tm.Unmasking(3, order), codes=tm.CodeSampling(0.9, top_k=7, top_p=0.9))
    runs = [tm.generate(model, shape_of(name), range(4), given, params=params, batch_size=size) for size in (4, 1)]
    torch.testing.assert_close(runs[0].x, runs[1].x, atol=1e-5, rtol=1e-5)
    assert runs[0].evaluations.backbone == 3 * (len(tm.VARIANTS[name].times.points) - 1)


def test_codes_follow_the_softmax() -> None:
    distribution = awake(tm.Categorical(CODES, 8, 8))
    n, h = 20_000, torch.randn(1, 3, 8)
    noise = distribution.base_noise(tm.RandomStreams(range(n)), 3)
    k, chances = distribution.sample_codes(noise, h.expand(n, -1, -1), tm.CodeSampling(), CONDITIONAL)
    p = distribution.logits(h)[0].softmax(-1)
    for token in range(3):
        seen = k[:, token, 0].long().bincount(minlength=CODES) / n
        assert ((seen - p[token]).abs() < 5 * (p[token] * (1 - p[token]) / n).sqrt() + 1e-9).all()
    narrow = distribution.sample_codes(noise, h.expand(n, -1, -1), tm.CodeSampling(0.5, top_k=2), CONDITIONAL)
    assert narrow[0].unique().numel() <= 2 * 3
    torch.testing.assert_close(narrow[1], p.log().expand(n, -1, -1).take_along_dim(narrow[0].long(), dim=-1)[..., 0])
    torch.testing.assert_close(chances, p.log().expand(n, -1, -1).take_along_dim(k.long(), dim=-1)[..., 0])


def test_the_loss_is_the_log_probability() -> None:
    distribution = awake(tm.Categorical(CODES, 8, 8))
    h, b = torch.randn(2, 3, 8), torch.randint(CODES, (2, 3, 1)).float()
    expected = -distribution.logits(h).log_softmax(-1).take_along_dim(b.long(), dim=-1)[..., 0]
    torch.testing.assert_close(distribution.loss(b, h, None, tm.RandomStreams([0, 1])), expected)


def test_temperature_top_k_and_top_p_filter_the_logits() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    p = lambda **codes: filter_logits(logits, tm.CodeSampling(**codes)).softmax(-1)  # noqa: E731
    torch.testing.assert_close(p(), torch.tensor([0.5, 0.25, 0.15, 0.1]))
    torch.testing.assert_close(p(top_k=2), torch.tensor([2 / 3, 1 / 3, 0, 0]))
    torch.testing.assert_close(p(top_p=0.6), torch.tensor([2 / 3, 1 / 3, 0, 0]))
    torch.testing.assert_close(p(top_p=0.5), torch.tensor([1.0, 0, 0, 0]))
    torch.testing.assert_close(p(temperature=0.5)[0] / p(temperature=0.5)[1], torch.tensor(4.0))
    distribution = awake(tm.Categorical(CODES, 8, 8))
    h = torch.randn(50, 3, 8)
    greedy = distribution.sample_codes(
        distribution.base_noise(tm.RandomStreams(range(50)), 3), h, tm.CodeSampling(temperature=0), CONDITIONAL
    )[0]
    assert torch.equal(greedy[..., 0].long(), distribution.logits(h).argmax(-1))


def test_logits_are_guided() -> None:
    distribution = awake(tm.Categorical(CODES, 8, 8))
    h = torch.randn(2, 3, 8)  # of one image: conditional, then null
    branches = Branches((None, None), (3.0, -2.0))
    k = distribution.sample_codes(
        distribution.base_noise(tm.RandomStreams([0]), 3), h, tm.CodeSampling(temperature=0), branches
    )[0]
    guided = distribution.logits(h[1:]) + 3 * (distribution.logits(h[:1]) - distribution.logits(h[1:]))
    assert torch.equal(k[..., 0].long(), guided.argmax(-1))


def test_guided_logits_are_not_rescaled() -> None:
    """A constant added to all logits changes their norm, but no probability."""
    distribution, h, u = awake(tm.Categorical(CODES, 8, 8)), torch.randn(2, 3, 8), torch.rand(1, 3)
    (_, plain), (_, rescaled) = (
        distribution.sample_codes(u, h, tm.CodeSampling(), Branches((None, None), (3.0, -2.0), phi))
        for phi in (0.0, 1.0)
    )
    assert torch.equal(plain, rescaled)


def test_the_most_confident_codes_are_kept() -> None:
    """Without noise on the confidence, the most certain tokens come first."""
    kernel = small_model("mar-discrete").kernel
    sure = torch.tensor([[0.0, 9.0, 1.0, 5.0, 3.0, 7.0]])  # logits of code 0 against those of all others

    class Known(torch.nn.Module):
        width = 1

        def forward(self, x, t, condition=None, *, positions=None):  # noqa: ANN001, ANN202
            return sure.expand(len(x), -1)[..., None]

    kernel.backbone, kernel.distribution.readout = Known(), torch.nn.Linear(1, CODES)
    torch.nn.init.zeros_(kernel.distribution.readout.weight)
    torch.nn.init.zeros_(kernel.distribution.readout.bias)
    kernel.distribution.readout.weight.data[0] = 1
    order = []
    params = tm.SamplingParams(
        unmasking=tm.Unmasking(order="confidence", temperature=0.0), codes=tm.CodeSampling(temperature=0),
    )  # fmt: skip
    kernel.sample(
        torch.zeros(1, 2, 3, 1), *torch.tensor([0.0, 1.0]), None, tm.RandomStreams([0]), params,
        lambda snapshot: order.append(snapshot.known.flatten().tolist()),
    )  # fmt: skip
    assert order[0] == [False, True, False, False, False, True]
    assert order[1] == [False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: tm.Unmasking(0), "mask iterations must be a positive integer"),
        (lambda: tm.Unmasking(order="rastr"), "order must be one of"),
        (lambda: tm.Unmasking(temperature=math.nan), "temperature must be"),
        (lambda: tm.CodeSampling(top_p=0.0), "top_p must be in"),
        (lambda: tm.TruncatedGaussianRatio(std=0), "positive std"),
        (lambda: tm.TruncatedGaussianRatio(2.0, 0.1), "more mass in"),
        (lambda: tm.build("martm-2", tm.DiT(16, 64, 1, 2), 16), "too few for X_t and Y with 16 each"),
        (
            lambda: tm.TransitionMatching(
                tm.IndependentLinearProcess(), tm.NextState(), small_model("mar-discrete").kernel, tm.Grid.uniform(2)
            ).loss(data_of("mar-discrete", 8), tm.RandomStreams(range(8)), condition(8)),
            "train discrete variants with T = 1",
        ),
        (lambda: known_counts(16, 17), "at most 16 mask iterations"),
        (lambda: tm.build("ar-discrete", small_dit(timed=False), 4), "need codebook_size"),
        (
            lambda: small_model("ar-discrete").loss(
                torch.full((1, 2, 3, 1), 11.0), tm.RandomStreams([0]), condition(1)
            ),
            "range from 11 to 11, but the codebook has 11 codes",
        ),
        (
            lambda: small_model("mar-discrete").loss(torch.zeros(1, 2, 3, 4), tm.RandomStreams([0]), condition(1)),
            "encode the images with a discrete autoencoder",
        ),
        (
            lambda: tm.TransitionMatching(
                tm.LinearProcess(), tm.NextState(),
                tm.Masked(small_dit(), tm.Flow(tm.FlowHead(4, 24)), 4, 8, tm.CosineRatio()), tm.Grid.uniform(2),
            ),
            "dependent=True",
        ),
        (lambda: tm.build("mar", tm.MLP((N,), SHAPE[-1]), SHAPE[-1]), "MLP takes no positions"),
    ],
)  # fmt: skip
def test_invalid_input_is_rejected(call, reason: str) -> None:  # noqa: ANN001
    with pytest.raises(ValueError, match=reason):
        call()
