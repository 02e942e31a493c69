"""The second choice: what Y is.

A kernel does not have to predict X_{t+1} itself. It predicts a latent Y of the process such that X_{t+1} follows from
X_t and Y (Eq. 6), which sampling then does by the rules of the process:

    target      Y, from a transition of the supervising process; training regresses or models it.
    endpoints   (Z_t, X_T), from X_t and Y, by solving X_t = sigma_t Z_t + alpha_t X_T.
    advance     X_{t+1} ~ q(. | X_t, Y), from those endpoints.

    Difference  Y = X_T - X_0   flow matching's velocity; X_{t'} = X_t + (t' - t) Y on the linear process (Eq. 12)
    CleanState  Y = X_T         x-prediction
    NoiseState  Y = X_0         epsilon-prediction
    NextState   Y = X_{t+1}     no endpoints; the grid of training is the grid of sampling: ARTM, FHTM, MAR

The first three determine X_T, so the number of steps is free when sampling. A new parametrization is one file and one
row of `PARAMETRIZATIONS`.
"""

from tmatch.parametrization.base import Parametrization
from tmatch.parametrization.endpoints import CleanState, Difference, NoiseState
from tmatch.parametrization.next_state import NextState

PARAMETRIZATIONS: dict[str, Parametrization] = {
    "difference": Difference(),
    "next-state": NextState(),
    "clean-state": CleanState(),
    "noise-state": NoiseState(),
}

__all__ = ["PARAMETRIZATIONS", "CleanState", "Difference", "NextState", "NoiseState", "Parametrization"]
