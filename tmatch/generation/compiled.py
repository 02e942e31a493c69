"""Compilation of what sampling calls again and again."""

from typing import Any

import torch

from tmatch.distribution import Flow
from tmatch.model import Model

OPTIONS: dict[str, Any] = {"options": {"freezing": True, "cpp_wrapper": True}}
"""What `torch.compile` is told: that weights are constants, and to call the result without Python."""


def compile_for_sampling(model: Model, **how: Any) -> None:  # noqa: ANN401
    """Compile a model's networks in place: the backbone, and the way of a flow from noise to tokens.

    For a model whose weights no longer change: they become constants, and loading others later has no effect. The first
    image takes a minute or more, and a C++ compiler; it pays where many small calls are made, as in decoding token by
    token. `how` goes to `torch.compile`.
    """
    model.requires_grad_(False)
    how = how or OPTIONS
    backbone = model.kernel.backbone
    backbone.forward = torch.compile(backbone.forward, **how)
    for part in model.kernel.modules():
        if isinstance(part, Flow):
            part.forward = torch.compile(part.forward, **how)  # type: ignore[method-assign]
