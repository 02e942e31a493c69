"""Planning: what training a model and sampling from it costs on given GPUs, without allocating anything."""

from tmatch.plan.devices import DEVICES, Accelerator, find_device
from tmatch.plan.memory import Memory
from tmatch.plan.meter import Cost
from tmatch.plan.plan import Plan, Utilisation, plan, seconds
from tmatch.plan.report import render, to_json
from tmatch.plan.sampling import Calls, SamplingCost, sampling_cost
from tmatch.plan.training import Activations
from tmatch.tensors import Precision

__all__ = [
    "DEVICES",
    "Accelerator",
    "Activations",
    "Calls",
    "Cost",
    "Memory",
    "Plan",
    "Precision",
    "SamplingCost",
    "Utilisation",
    "find_device",
    "plan",
    "render",
    "sampling_cost",
    "seconds",
    "to_json",
]
