"""Recipes: functions that return everything a run needs to know."""

from collections.abc import Callable

from tmatch.recipes.autoencoder import AutoencoderRecipe, shapes_autoencoder

RECIPES: dict[str, Callable[[], AutoencoderRecipe]] = {"shapes-autoencoder": shapes_autoencoder}

__all__ = ["RECIPES", "AutoencoderRecipe", "shapes_autoencoder"]
