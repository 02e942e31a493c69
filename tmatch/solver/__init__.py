"""ODE solvers, for whatever integrates a velocity: a head over s, and a mean over t."""

from tmatch.solver.adaptive import Adaptive
from tmatch.solver.base import FixedStep, OneStep, Solver, Step, Velocity
from tmatch.solver.exponential import DPMSolver2M, UniPC
from tmatch.solver.multistep import AB2, AB3
from tmatch.solver.runge_kutta import RK4, Euler, Heun, Midpoint

SOLVERS: dict[str, type[FixedStep]] = {
    "euler": Euler,
    "midpoint": Midpoint,
    "heun": Heun,
    "rk4": RK4,
    "ab2": AB2,
    "ab3": AB3,
    "dpm++2m": DPMSolver2M,
    "unipc": UniPC,
}

__all__ = [
    "AB2",
    "AB3",
    "RK4",
    "SOLVERS",
    "Adaptive",
    "DPMSolver2M",
    "Euler",
    "FixedStep",
    "Heun",
    "Midpoint",
    "OneStep",
    "Solver",
    "Step",
    "UniPC",
    "Velocity",
]
