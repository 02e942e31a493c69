"""The paper's recipes, with nothing allocated."""

import pytest
import torch

from tmatch.recipes.base import Expected
from tmatch.recipes.paper import LADDER_RECIPES, PAPER_RECIPES


def parameters(name: str) -> int:
    recipe = {**PAPER_RECIPES, **LADDER_RECIPES}[name]()
    sizes = recipe.sizes(Expected())
    assert sizes.shape == (16, 16, 1 if sizes.codes else 16)  # 256 tokens of 2 x 2 x 4 numbers, or of a code
    with torch.device("meta"):
        model = recipe.network(sizes.shape, sizes.text[1], sizes.codes)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PAPER_RECIPES)
def test_the_papers_models_have_the_papers_size(name: str) -> None:
    assert parameters(name) == pytest.approx(1.7e9, rel=0.05)


def test_the_ladder_rises() -> None:
    for name in ("fm", "dtm"):
        sizes = [parameters(f"{name}-{size}") for size in ("s", "b", "l", "xl")]
        assert sizes == sorted(sizes)
