"""Accelerators: peak FLOP/s, memory and memory bandwidth."""

from dataclasses import dataclass

from tmatch.tensors import Precision

GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """One accelerator, by its vendor's figures without sparsity, in FLOP/s, bytes (GB as 2^30) and bytes/s.

    On GeForce cards bfloat16 products accumulate in float32 at half the rate that is advertised for float16.
    """

    name: str
    bfloat16: float
    tf32: float
    float32: float
    memory: int
    bandwidth: float


_ALL = (
    Accelerator("H100 SXM", 989.4e12, 494.7e12, 66.9e12, 80 * GIB, 3.35e12),
    Accelerator("A100 80GB", 312e12, 156e12, 19.5e12, 80 * GIB, 2.039e12),
    Accelerator("A100 40GB", 312e12, 156e12, 19.5e12, 40 * GIB, 1.555e12),
    Accelerator("L40S", 362.05e12, 183e12, 91.6e12, 48 * GIB, 0.864e12),
    Accelerator("RTX 4090", 165.2e12, 82.6e12, 82.6e12, 24 * GIB, 1.008e12),
    Accelerator("RTX 3090", 71e12, 35.6e12, 35.6e12, 24 * GIB, 0.936e12),
)
DEVICES = {device.name: device for device in _ALL}
"""The devices by name; the A100s are the SXM versions."""


def find_device(name: str) -> Accelerator:
    """Return a device by its name, ignoring case, spaces and hyphens."""
    for device in DEVICES.values():
        if device.name.lower().replace(" ", "") == name.lower().replace(" ", "").replace("-", ""):
            return device
    raise ValueError(f"There is no device '{name}'; choose from {', '.join(DEVICES)}, or pass an Accelerator.")


def bytes_per_number(precision: Precision) -> int:
    """Return the bytes of a number in matrix products."""
    return 2 if precision == "bfloat16" else 4
