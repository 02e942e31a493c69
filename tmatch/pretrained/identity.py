"""What a network is, in a few letters."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""What encoders may compute in, and shards be written in."""
Precision = Literal["float32", "float16", "bfloat16"]


def digest(network: nn.Module, besides: str = "") -> str:
    """SHA-256 of the names, types and bytes of all weights, and of what else there is to know of a network."""
    total = hashlib.sha256(besides.encode())
    for name, tensor in sorted(network.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return total.hexdigest()


def first_line(error: Exception, line: int = 0) -> str:
    """What an error says, without its explanations; or another of its lines."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[min(line, len(lines) - 1)].strip().rstrip(".")


class MissingExtra(ValueError):
    """An extra of the package is not installed."""


@contextmanager
def extra(what: str) -> Iterator[None]:
    """Say which extra of the package to install where an import fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f'{what} needs {error.name}: pip install "tmatch[t2i]".') from error
