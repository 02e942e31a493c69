"""Planning: what training a model and sampling from it costs on given GPUs, without allocating anything."""

from tmatch.plan.devices import DEVICES, Accelerator, find_device
from tmatch.plan.meter import Cost
from tmatch.plan.plan import Plan, Utilisation, plan, seconds
from tmatch.plan.report import render, to_json
from tmatch.plan.sampling import sampling_cost

__all__ = [
    "DEVICES", "Accelerator", "Cost", "Plan", "Utilisation", "find_device", "plan", "render", "sampling_cost",
    "seconds", "to_json",
]  # fmt: skip
