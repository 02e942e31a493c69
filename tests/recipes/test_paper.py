"""The paper's recipes, with nothing allocated."""

import pytest
import torch

from tmatch import Condition, RandomStreams
from tmatch.recipes.paper import PAPER_RECIPES
from tmatch.sampler import build_sampler
from tmatch.times import Continuous
from tmatch.variants import VARIANTS


def parameters(name: str) -> int:
    recipe = PAPER_RECIPES[name]()
    sizes = recipe.input_shapes()
    assert sizes.shape == (16, 16, 1 if sizes.codebook_size else 16)  # 256 tokens of 2 x 2 x 4 numbers, or of a code
    with torch.device("meta"):
        model = recipe.network(sizes.shape, sizes.text[1], sizes.codebook_size)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_parameters_match_the_paper(name: str) -> None:
    assert parameters(name) == pytest.approx(1.7e9, rel=0.05)


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_training_and_sampling_match_the_paper(name: str) -> None:
    """Appendix A.1: 500K steps of 2048 at 1e-4, 15% dropped, w = 6.5; the ablation of Section 4 took 100K."""
    recipe = PAPER_RECIPES[name]()
    train = recipe.train
    assert train.steps == (100_000 if "dependent" in name else 500_000)
    assert (train.batch_size, train.learning_rate, train.cooldown, train.warmup) == (2048, 1e-4, 0.0, 2000)
    assert (recipe.caption_dropout, recipe.sampling.guidance) == (0.15, 6.5)
    backbone, head = recipe.backbone, recipe.head
    assert (backbone.width, backbone.depth, backbone.heads) == (2048, 34 if "llama" in name else 24, 16)
    assert (head.width, head.depth) == (1024, 6)


@pytest.mark.parametrize("name", [name for name in PAPER_RECIPES if "discrete" not in name and name[6:8] != "fm"])
def test_the_head_of_mar_learns_from_four_samples_of_each_token(name: str) -> None:
    """As Li et al. (2024) train it, Section 3.4: four times s and the noise per token; other heads see each once."""
    recipe, seen = PAPER_RECIPES[name](), []
    small = {"backbone": {"width": 32, "depth": 1, "heads": 2}, "head": {"width": 8, "depth": 1}}
    for part, sizes in small.items():
        recipe = recipe.model_copy(update={part: getattr(recipe, part).model_copy(update=sizes)})
    model = recipe.network((16, 16, 16), 8)
    model.kernel.head.register_forward_pre_hook(lambda _, args: seen.append(args[:2]))
    condition = Condition.dense(torch.zeros(1, 1, 8))
    model.loss(RandomStreams([1]).normal(16, 16, 16), RandomStreams([0]), condition)
    ((y, s),) = seen
    noises, times = (x.expand(*y.shape[:3], -1) for x in (y, s[..., None]))
    for x in (noises, times):
        assert len(x[0, :, 0].unique(dim=0)) == (4 if VARIANTS[recipe.variant].evaluations == "T K" else 1)


def test_evaluations_match_the_paper() -> None:
    """Of the backbone, as its tables have them."""
    tokens, found = 256, {}
    for name in ("fm", "dtm", "dtm-32", "ar", "artm-2", "artm-3", "fhtm-2", "fhtm-3", "mar", "martm-2"):
        recipe = PAPER_RECIPES[f"paper-{name}"]()
        with torch.device("meta"):
            model = recipe.network((16, 16, 16), 8)
        a_transition = {"T n": tokens, "T K": recipe.sampling.iterations or tokens}
        each = a_transition.get(VARIANTS[recipe.variant].evaluations, 1)
        found[name] = model.transitions(recipe.sampling.steps, build_sampler(recipe.sampling.sampler)) * each
    assert found == {
        "fm": 256, "dtm": 32, "dtm-32": 32, "ar": 256, "artm-2": 512, "artm-3": 768, "fhtm-2": 512,
        "fhtm-3": 768, "mar": 256, "martm-2": 256,
    }  # fmt: skip


def test_dtm_trains_on_the_papers_grid_or_in_continuous_time() -> None:
    """Section 4 has T = 32, t ~ U([T - 1]); Section 2.2 allows continuous t, which `paper-dtm` uses."""
    times = VARIANTS[PAPER_RECIPES["paper-dtm-32"]().variant].times
    t, t_next = times.sample(RandomStreams(range(4096)))
    assert sorted(set((32 * t).tolist())) == list(range(32))
    torch.testing.assert_close(t_next - t, torch.full_like(t, 1 / 32))
    assert isinstance(VARIANTS[PAPER_RECIPES["paper-dtm"]().variant].times, Continuous)
