"""Recipes: functions that return everything a run needs to know, and the models that runs leave behind."""

from tmatch.recipes.autoencoder import AutoencoderRecipe, committed_autoencoder, shapes_autoencoder
from tmatch.recipes.generator import GeneratorRecipe
from tmatch.recipes.models import MODELS, load_model
from tmatch.recipes.table import RECIPES, Recipe

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
