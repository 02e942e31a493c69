"""Planning: what training a model and drawing from it would take on some GPUs, with nothing allocated."""

from tmatch.plan.devices import DEVICES, device_of
from tmatch.plan.sampling import Draw, sampling

__all__ = ["DEVICES", "Draw", "device_of", "sampling"]
