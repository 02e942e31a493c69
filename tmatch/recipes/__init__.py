"""Recipes: functions that return the whole configuration of a run."""

from collections.abc import Callable, Mapping

from tmatch.recipes.imagenet import IMAGENET_RECIPES
from tmatch.recipes.own import FOLDER_RECIPES, SHARDS_RECIPES
from tmatch.recipes.paper import PAPER_RECIPES, SIZE_RECIPES
from tmatch.recipes.shapes import SHAPES_RECIPES
from tmatch.recipes.small import SMALL_RECIPES
from tmatch.runs import AutoencoderRun, RunConfig

GROUPS: dict[str, Mapping[str, Callable[[], RunConfig | AutoencoderRun]]] = {
    "shapes": SHAPES_RECIPES,
    "small": SMALL_RECIPES,
    "folder": FOLDER_RECIPES,
    "shards": SHARDS_RECIPES,
    "sizes": SIZE_RECIPES,
    "paper": PAPER_RECIPES,
    "imagenet": IMAGENET_RECIPES,
}
RECIPES: dict[str, Callable[[], RunConfig | AutoencoderRun]] = {
    name: recipe for group in GROUPS.values() for name, recipe in group.items()
}
"""A function for each name."""

__all__ = ["GROUPS", "RECIPES"]
