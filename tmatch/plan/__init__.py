"""Planning: what training a model and drawing from it would take on some GPUs, with nothing allocated."""

from tmatch.plan.devices import DEVICES, device_of

__all__ = ["DEVICES", "device_of"]
