"""The second choice: what Y is."""

from tmatch.parametrization.base import Parametrization
from tmatch.parametrization.clean_state import CleanState
from tmatch.parametrization.difference import Difference
from tmatch.parametrization.next_state import NextState
from tmatch.parametrization.noise_state import NoiseState

PARAMETRIZATIONS: dict[str, Parametrization] = {
    "difference": Difference(),
    "next-state": NextState(),
    "clean-state": CleanState(),
    "noise-state": NoiseState(),
}

__all__ = ["PARAMETRIZATIONS", "CleanState", "Difference", "NextState", "NoiseState", "Parametrization"]
