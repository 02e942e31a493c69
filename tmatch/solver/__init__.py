"""ODE solvers over s, for distributions that integrate a velocity."""

from tmatch.solver.adaptive import Adaptive
from tmatch.solver.base import FixedStep, Solver, Velocity
from tmatch.solver.euler import Euler
from tmatch.solver.heun import Heun
from tmatch.solver.midpoint import Midpoint
from tmatch.solver.rk4 import RK4

SOLVERS: dict[str, type[FixedStep]] = {
    "euler": Euler,
    "midpoint": Midpoint,
    "heun": Heun,
    "rk4": RK4,
}

__all__ = ["RK4", "SOLVERS", "Adaptive", "Euler", "FixedStep", "Heun", "Midpoint", "Solver", "Velocity"]
