"""What is copied to a device, as it is seen below autograd."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Copies(TorchDispatchMode):
    """Notes the dtype of every tensor that goes to a device from another, in turn."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        given: Sequence[Any] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = function(*given, **(named or {}))
        copied = isinstance(result, Tensor) and result.device.type == self.device
        if copied and any(isinstance(one, Tensor) and one.device.type != self.device for one in given):
            self.dtypes.append(result.dtype)
        return result
