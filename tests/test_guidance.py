import math

import pytest
import torch
from laws import SHAPE, SMALL_HEAD, condition, shape_of, small_model, steps_of

from tmatch import (
    ClassifierFreeGuidance,
    Condition,
    Continuous,
    Difference,
    Euler,
    Flow,
    Guidance,
    Head,
    LinearProcess,
    NoGuidance,
    ParallelFlow,
    RandomStreams,
    SamplingParams,
    TransitionMatching,
    generate,
)
from tmatch.guidance import GUIDANCE_SCHEDULES, Branches
from tmatch.variants import VARIANTS

NULL = condition(1, length=1, seed=99)
GIVEN = condition(4)


def sample(name: str, given: Condition, guidance: Guidance = NoGuidance()) -> torch.Tensor:  # noqa: B008
    model = small_model(name, head=SMALL_HEAD)
    return model.sample(
        shape_of(name), RandomStreams(range(4)), given, steps_of(name), SamplingParams(guidance=guidance)
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_scale_one_is_conditional_and_zero_is_unconditional(name: str) -> None:
    torch.manual_seed(0)
    plain = sample(name, GIVEN)
    torch.manual_seed(0)
    one = sample(name, GIVEN, ClassifierFreeGuidance(NULL, 1.0))
    torch.manual_seed(0)
    zero = sample(name, GIVEN, ClassifierFreeGuidance(NULL, 0.0))
    torch.manual_seed(0)
    null = sample(name, NULL)
    torch.manual_seed(0)
    nearest = sample(name, GIVEN, ClassifierFreeGuidance(NULL, 1.0 + 1e-6))
    assert torch.equal(one, plain)
    torch.testing.assert_close(nearest, plain, atol=1e-3, rtol=1e-4, msg="two branches and one must agree")
    torch.testing.assert_close(zero, null, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(plain, null, atol=1e-3)


def test_the_velocity_is_guided_at_the_same_point() -> None:
    h = torch.cat([torch.full((2, 1), 3.0), torch.full((2, 1), 5.0)])  # conditional, then null
    seen = []

    def velocity(s: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(y)
        return y * h

    y_s = torch.tensor([[1.0], [2.0]])
    guided = ClassifierFreeGuidance(NULL, 2.5).at(0.5, GIVEN).guide(velocity)(torch.tensor(0.0), y_s)
    torch.testing.assert_close(guided, y_s * 5 + 2.5 * (y_s * 3 - y_s * 5))
    assert len(seen) == 1, "both branches in one batched pass"
    assert torch.equal(seen[0][:2], seen[0][2:])


@pytest.mark.parametrize("w", [-0.5, 0.4, 3.0])
@pytest.mark.parametrize("name", ["dtm", "dtm-mean"])
def test_guided_dtm_is_algorithm_2_with_a_guided_velocity(name: str, w: float) -> None:
    """Written out: u = u_null + w (u_cond - u_null) at every step of the head, both velocities at the same y_s."""
    model = small_model(name, head=SMALL_HEAD)
    params = SamplingParams(Euler(3), ClassifierFreeGuidance(NULL, w))
    sampled = model.sample(SHAPE, RandomStreams(range(4)), GIVEN, 5, params)
    kernel, head, rng = model.kernel, model.kernel.head, RandomStreams(range(4))
    x = rng.normal(*SHAPE)
    with torch.no_grad():
        for step in range(5):
            t = torch.full((4,), step / 5)
            h_cond, h_null = (kernel.backbone(x, t, given).flatten(1, 2) for given in (GIVEN, NULL.repeated(4)))
            contexts = [head.prepare(h[:, None], t) for h in (h_cond, h_null)]
            y_s = rng.normal(SHAPE[0] * SHAPE[1], SHAPE[2])[:, None]
            for s in (0, 1 / 3, 2 / 3):
                u_cond, u_null = (head(y_s, torch.tensor(s), context) for context in contexts)
                y_s = y_s + (u_null + w * (u_cond - u_null)) / 3
            y = y_s[:, 0]
            if name == "dtm-mean":
                y = y + kernel.readout(h_null) + w * (kernel.readout(h_cond) - kernel.readout(h_null))
            x = x + y.view_as(x) / 5
    torch.testing.assert_close(sampled, x, atol=1e-5, rtol=1e-5)


def test_branches_of_zero_weight_are_evaluated_only_for_kernels_with_a_cache() -> None:
    guidance = ClassifierFreeGuidance(NULL, 4.0, interval=(0.25, 0.75))
    assert len(guidance.at(0.5, GIVEN).weights) == 2
    assert guidance.at(0.1, GIVEN).weights == (1.0,)
    assert guidance.at(0.8, GIVEN).weights == (1.0,)
    assert guidance.at(0.1, GIVEN, keep_all=True).weights == (1.0, 0.0)
    assert ClassifierFreeGuidance(NULL, 1.0).at(0.1, GIVEN, keep_all=True).weights == (1.0,)


@pytest.mark.parametrize("name", [name for name, row in VARIANTS.items() if row.evaluations == "T"])
def test_guidance_follows_the_time(name: str) -> None:
    asked = []

    class Listening(NoGuidance):
        def at(self, progress: float, condition: Condition | None, keep_all: bool = False) -> Branches:
            asked.append(progress)
            return super().at(progress, condition)

    sample(name, GIVEN, Listening())
    model = small_model(name)
    assert asked == model.grid(10)[:-1].tolist()


def test_a_negative_prompt_for_each_image_survives_batching() -> None:
    model, negative = small_model("dtm"), condition(4, seed=70)
    params = SamplingParams(guidance=ClassifierFreeGuidance(negative, 2.0))
    runs = [generate(model, SHAPE, range(4), GIVEN, steps=2, params=params, batch_size=n).x for n in (4, 3)]
    torch.testing.assert_close(*runs, atol=1e-5, rtol=0)
    for size in (2, 3, 6):
        with pytest.raises(ValueError, match="4 conditions for 6 images"):
            generate(model, SHAPE, range(6), condition(6), steps=2, params=params, batch_size=size)


def test_schedules_rise_and_fall() -> None:
    up, down = (ClassifierFreeGuidance(NULL, 5.0, schedule=GUIDANCE_SCHEDULES[name]) for name in ("rising", "falling"))
    assert [up.weight(p) for p in (0.0, 0.5, 1.0)] == [1.0, 3.0, 5.0]
    assert [down.weight(p) for p in (0.0, 0.5, 1.0)] == [5.0, 3.0, 1.0]


def velocities(branches: int = 2) -> torch.Tensor:
    """Of 5 tokens for each branch of 3 images."""
    return torch.randn(branches * 3, 5, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("w", [-0.5, 0.0, 0.4, 3.0])
@pytest.mark.parametrize("phi", [0.3, 0.7, 1.0])
def test_rescaling_moves_the_norm_of_each_token_towards_that_without_guidance(w: float, phi: float) -> None:
    v, branches = velocities(), Branches((GIVEN, NULL), (w, 1 - w), phi)
    (v_cond, _), plain = v.chunk(2), branches.weighted_sum(v)
    rescaled = branches.mix(v)
    expected = (1 - phi) * plain.norm(dim=-1) + phi * v_cond.norm(dim=-1)
    torch.testing.assert_close(rescaled.norm(dim=-1), expected, atol=0, rtol=1e-6)
    cosine = torch.cosine_similarity(rescaled, plain, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine), atol=1e-6, rtol=0)
    for token in range(5):
        assert torch.equal(branches.mix(v[:, token : token + 1]), rescaled[:, token : token + 1]), "each for itself"


@pytest.mark.parametrize("phi", [0.3, 0.7, 1.0])
def test_rescaling_leaves_what_is_not_guided_to_the_bit(phi: float) -> None:
    v, one = velocities(), velocities(1)
    assert torch.equal(Branches((GIVEN,), (1.0,), phi).mix(one), one)
    assert torch.equal(Branches((GIVEN, NULL), (1.0, 0.0), phi).mix(v), v[:3]), "a kernel with a cache keeps both"
    guided = Branches((GIVEN, NULL), (3.0, -2.0), 0.0).mix(v)
    assert torch.equal(guided, 3.0 * v[:3] + -2.0 * v[3:]), "phi = 0"
    opposed = torch.cat([v[:3], 2 * v[:3]])
    assert torch.equal(Branches((GIVEN, NULL), (2.0, -1.0), phi).mix(opposed), torch.zeros_like(v[:3])), "no direction"


def test_rescaled_guidance_is_continuous_in_the_scale() -> None:
    """At w = 0 the norm is still that of the conditional branch, which a kernel with a cache evaluates anyway."""
    samples = []
    for scale in (0.0, 1e-6):
        torch.manual_seed(0)
        samples.append(sample("dtm", GIVEN, ClassifierFreeGuidance(NULL, scale, rescale=0.7)))
    torch.testing.assert_close(*samples, atol=1e-4, rtol=1e-4)
    rescaled = ClassifierFreeGuidance(NULL, 3.0, interval=(0.25, 0.75), rescale=0.7)
    assert rescaled.at(0.1, GIVEN) == Branches((GIVEN,), (1.0,), 0.7), "one branch suffices outside the interval"
    assert rescaled.at(0.5, GIVEN).rescale == 0.7


class Towards(torch.nn.Module):
    """A backbone whose output is the condition: a target for each token."""

    width = 2

    def forward(self, x: torch.Tensor, t: torch.Tensor, condition: Condition) -> torch.Tensor:
        return condition.tokens.expand_as(x)


class Pull(Head):
    """u_s(y) = h - y."""

    channels = 2

    def prepare(self, h: torch.Tensor, t: torch.Tensor | None, cache: object = None) -> torch.Tensor:
        return h

    def forward(
        self, y: torch.Tensor, s: torch.Tensor, context: torch.Tensor, r: torch.Tensor | None = None
    ) -> torch.Tensor:
        return context - y


@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("phi", [0.0, 0.6, 1.0])
def test_rescaled_guidance_of_dtm_in_numbers(phi: float, interval: tuple[float, float]) -> None:
    """Two transitions of a DTM with velocities h - y, h = (3, 4) with the condition and (1, 0) without, at w = 3."""
    given, null = (Condition.dense(torch.tensor([[[a, b]]])) for a, b in ((3.0, 4.0), (1.0, 0.0)))
    kernel = ParallelFlow(Towards(), Flow(Pull()))
    model = TransitionMatching(LinearProcess(), Difference(), kernel, Continuous())
    guidance = ClassifierFreeGuidance(null, 3.0, interval, rescale=phi)
    found = model.sample((1, 2), RandomStreams([7]), given, 2, SamplingParams(Euler(2), guidance))
    rng = RandomStreams([7])
    x = rng.normal(1, 2).flatten().tolist()
    for t in (0.0, 0.5):
        y = rng.normal(1, 2).flatten().tolist()
        for _ in range(2):
            v_cond, v_null = (3 - y[0], 4 - y[1]), (1 - y[0], -y[1])
            w = 3 if interval[0] <= t <= interval[1] else 1
            v = [n + w * (c - n) for c, n in zip(v_cond, v_null, strict=True)]
            scale = 1 - phi + phi * math.hypot(*v_cond) / math.hypot(*v)
            y = [y_i + 0.5 * scale * v_i for y_i, v_i in zip(y, v, strict=True)]
        x = [x_i + 0.5 * y_i for x_i, y_i in zip(x, y, strict=True)]
    torch.testing.assert_close(found.flatten(), torch.tensor(x), atol=1e-5, rtol=1e-5)


def test_a_short_null_is_padded_without_changing_anything() -> None:
    x, t, both = Branches((GIVEN, NULL), (2.0, -1.0)).inputs(torch.zeros(4, *SHAPE), torch.tensor(0.5))
    assert both is not None
    assert (len(x), t.shape, both.tokens.shape) == (8, (8,), (8, 3, 8))
    assert both.mask[4:].sum(1).tolist() == [1, 1, 1, 1]


def test_invalid_guidance_is_rejected() -> None:
    with pytest.raises(ValueError, match="guidance scale must be finite"):
        ClassifierFreeGuidance(NULL, math.nan)
    with pytest.raises(ValueError, match="interval must satisfy 0 <= low <= high <= 1"):
        ClassifierFreeGuidance(NULL, 2.0, interval=(0.7, 0.3))
    with pytest.raises(ValueError, match=r"rescale must be in \[0, 1\]"):
        ClassifierFreeGuidance(NULL, 2.0, rescale=1.1)
    with pytest.raises(ValueError, match="Guidance needs a condition"):
        ClassifierFreeGuidance(NULL, 2.0).at(0.5, None)
    with pytest.raises(ValueError, match="use the same encoder for all"):
        sample("dtm", GIVEN, ClassifierFreeGuidance(condition(1, width=5), 2.0))
