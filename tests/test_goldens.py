"""Golden values, which refactoring must not change."""

from pathlib import Path

import goldens
import pytest
import torch
from safetensors.torch import load_file

STORED = load_file(Path(__file__).parent / "goldens.safetensors")


@pytest.mark.parametrize("group", goldens.GROUPS)
def test_values_are_as_stored(group: str) -> None:
    """To 1e-5 of the largest, since CPUs round differently; `python tests/goldens.py compare` is exact."""
    for key, value in goldens.values(group).items():
        stored = STORED[f"{group}/{key}"]
        tolerance = 1e-5 * float(stored.abs().max())
        torch.testing.assert_close(goldens.reduced(value), stored, rtol=0, atol=tolerance)
