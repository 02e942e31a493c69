"""Planning: what training a model and drawing from it would take on some GPUs, with nothing allocated."""

from tmatch.plan.devices import DEVICES, Device, device_of
from tmatch.plan.memory import Memory
from tmatch.plan.meter import Cost
from tmatch.plan.plan import Plan, Utilisation, plan, seconds
from tmatch.plan.report import record, render
from tmatch.plan.sampling import Calls, Draw, Sampling, sampling
from tmatch.plan.training import Activations
from tmatch.tensors import Precision

__all__ = [
    "DEVICES",
    "Activations",
    "Calls",
    "Cost",
    "Device",
    "Draw",
    "Memory",
    "Plan",
    "Precision",
    "Sampling",
    "Utilisation",
    "device_of",
    "plan",
    "record",
    "render",
    "sampling",
    "seconds",
]
