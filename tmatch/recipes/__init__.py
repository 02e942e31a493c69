"""Recipes: functions that return everything a run needs to know."""

from collections.abc import Callable

from tmatch.recipes.autoencoder import AutoencoderRecipe, committed_autoencoder, shapes_autoencoder

RECIPES: dict[str, Callable[[], AutoencoderRecipe]] = {"shapes-autoencoder": shapes_autoencoder}

__all__ = ["RECIPES", "AutoencoderRecipe", "committed_autoencoder", "shapes_autoencoder"]
