"""The first choice: the supervising process q(X_0, ..., X_T | X_T)."""

from tmatch.process.base import Process, Transition
from tmatch.process.diffusion import DiffusionProcess
from tmatch.process.gaussian import GaussianProcess, LinearProcess
from tmatch.process.independent import IndependentLinearProcess
from tmatch.process.schedule import SCHEDULES, Cosine, Linear, Schedule, VariancePreserving

PROCESSES: dict[str, Process] = {
    "linear": LinearProcess(),
    "independent-linear": IndependentLinearProcess(),
    "gaussian-cosine": GaussianProcess(Cosine()),
    "gaussian-variance-preserving": GaussianProcess(VariancePreserving()),
    "diffusion-cosine": DiffusionProcess(Cosine()),
    "diffusion-variance-preserving": DiffusionProcess(VariancePreserving()),
}

__all__ = [
    "PROCESSES",
    "SCHEDULES",
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
