"""Reading JSON and weights that others wrote: each function returns what is valid, or raises a ValueError."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from tmatch.rng import seeded_init

N = TypeVar("N", bound=nn.Module)


def first_line(error: Exception) -> str:
    """The first line of an error message; of a validation, the first invalid value."""
    if isinstance(error, ValidationError):
        wrong = error.errors()[0]
        return f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".")


def require_regular(file: Path) -> None:
    """Raise if a path is a pipe, a device or a folder: reading the first two may never end."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{file.name} is not a regular file")


def contained(file: Path) -> Path:
    """The file a path leads to: a link may point into its folder, or to where the cache of the hub stores files."""
    folder, target = file.parent.resolve(), Path(os.path.realpath(file))  # which tolerates circular links
    repository = next((path.parent for path in folder.parents if path.name == "snapshots"), folder)
    if not any(target.is_relative_to(place) for place in (folder, repository / "blobs", repository.parent / "blobs")):
        raise ValueError(f"{file} is a link to a file outside its folder; replace it by a copy")
    return target


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, in which no key occurs twice."""
    require_regular(file)
    try:
        found = json.loads(file.read_bytes(), object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(f"{file.name} is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} is not a JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


@contextmanager
def intact(file: Path) -> Iterator[None]:
    """Raise the errors of a damaged file as one sentence."""
    try:
        yield
    except (SafetensorError, ArithmeticError, AssertionError, LookupError, RuntimeError) as error:
        raise ValueError(f"{file} is damaged ({first_line(error)}); copy it again or train the model again.") from error


def read_weights(file: Path) -> dict[str, Tensor]:
    """The finite tensors of a safetensors file."""
    require_regular(file)
    with intact(file):
        tensors = load_file(file)
    require_finite_weights(tensors, file)
    return tensors


def read_shapes(file: Path) -> dict[str, list[int]]:
    """The shapes of the tensors of a safetensors file, from its header."""
    require_regular(file)
    with intact(file), safe_open(file, "pt") as tensors:
        return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118, not a mapping


def require_finite_weights(tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise if a tensor contains NaN or infinity; most are known to be finite from their sum, which is fast."""
    for name, tensor in tensors.items():
        total = tensor.sum(dtype=None if tensor.is_complex() else torch.float32)
        if not (total.isfinite() or tensor.isfinite().all()):
            raise ValueError(f"{source} contains NaN or infinity ({name}); use weights of a run that did not diverge.")


def load_network(build: Callable[[], N], tensors: Mapping[str, Tensor], blocks: Iterable[int], source: str) -> N:
    """A network with these weights; they are compared with its configuration before memory is allocated for it."""
    try:
        if (depth := max(blocks)) > len(tensors):
            raise ValueError(f"{len(tensors)} tensors are too few for {depth:,} blocks")
        with torch.device("meta"):
            network = build()
        expected = network.state_dict()
        own, found = ({name: described(x) for name, x in group.items()} for group in (expected, tensors))
        if wrong := sorted(name for name in {*own, *found} if own.get(name) != found.get(name)):
            raise ValueError(f"{wrong[0]} is {found.get(wrong[0])} instead of {own.get(wrong[0])}")
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"The weights in {source} ({first_line(error)}).") from error
    if expected.keys() >= dict(network.named_buffers()).keys():
        network.to_empty(device="cpu")
    else:  # some of its constants are not among the weights
        with seeded_init(0):
            network = build()
    network.load_state_dict(tensors)
    return network


def described(x: Tensor) -> str:
    """The kind of number and the shape of a tensor."""
    return f"{'float' if x.is_floating_point() else x.dtype} of shape {list(x.shape)}"
