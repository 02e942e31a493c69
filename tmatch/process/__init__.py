"""The first choice: the supervising process q(X_0, ..., X_T | X_T).

Transition Matching learns the transitions of a process that leads from noise X_0 ~ N(0, I) to data X_T. Every process
here has the form

    X_t = sigma_t Z_t + alpha_t X_T,    Z_t ~ N(0, I),

where the schedule (sigma_t, alpha_t) goes from noise (t = 0) to data (t = 1). The schedule fixes the marginals q_t. The
processes differ in how Z_{t+1} depends on Z_t, and therefore in the transitions q_{t+1|t} that a kernel has to learn:

    GaussianProcess            Z_{t+1} = Z_t = X_0. LinearProcess, the usual one, has straight lines (Eq. 10): FM, DTM.
    IndependentLinearProcess   Z_{t+1} is fresh noise (Eq. 15), which ARTM and FHTM need: X_t cannot reveal X_{t+1}.
    DiffusionProcess           partly kept, such that X_T, ..., X_0 is a Markov chain: DDPM.

A new process is a subclass with a `next_noise`.
"""

from tmatch.process.base import Process, Transition
from tmatch.process.noise import DiffusionProcess, GaussianProcess, IndependentLinearProcess, LinearProcess
from tmatch.process.schedule import Cosine, Linear, Schedule, VariancePreserving

__all__ = [
    "Cosine",
    "DiffusionProcess",
    "GaussianProcess",
    "IndependentLinearProcess",
    "Linear",
    "LinearProcess",
    "Process",
    "Schedule",
    "Transition",
    "VariancePreserving",
]
