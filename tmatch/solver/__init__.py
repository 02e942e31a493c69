"""ODE solvers over s, for distributions that integrate a velocity."""

from tmatch.solver.adaptive import Adaptive
from tmatch.solver.base import FixedStep, Solver, Velocity
from tmatch.solver.runge_kutta import RK4, Euler, Heun, Midpoint

SOLVERS: dict[str, type[FixedStep]] = {
    "euler": Euler,
    "midpoint": Midpoint,
    "heun": Heun,
    "rk4": RK4,
}

__all__ = ["RK4", "SOLVERS", "Adaptive", "Euler", "FixedStep", "Heun", "Midpoint", "Solver", "Velocity"]
