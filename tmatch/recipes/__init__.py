"""Recipes: functions that return everything a run needs to know, and the models that runs leave behind."""

from tmatch.recipes.table import RECIPES, Recipe
from tmatch.runs.autoencoder import AutoencoderRecipe, committed_autoencoder, shapes_autoencoder
from tmatch.runs.generator import GeneratorRecipe
from tmatch.runs.load import MODELS, load_model

__all__ = [
    "MODELS",
    "RECIPES",
    "AutoencoderRecipe",
    "GeneratorRecipe",
    "Recipe",
    "committed_autoencoder",
    "load_model",
    "shapes_autoencoder",
]
