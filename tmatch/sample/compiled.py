"""Compilation of what sampling calls again and again."""

from typing import Any

import torch

from tmatch.kernel import Flow
from tmatch.model import Model

OPTIONS: dict[str, Any] = {"freezing": True, "cpp_wrapper": True}


def compile_for_sampling(model: Model) -> None:
    """Compile a model's networks in place: the backbone, and the way of a flow from noise to tokens.

    For a model whose weights no longer change: they become constants. The first image takes a minute or more, and a C++
    compiler; it pays where many small calls are made, as in token-by-token decoding.
    """
    model.requires_grad_(False)
    backbone = model.kernel.backbone
    backbone.forward = torch.compile(backbone.forward, options=OPTIONS)
    for part in model.kernel.modules():
        if isinstance(part, Flow):
            part.forward = torch.compile(part.forward, options=OPTIONS)  # type: ignore[method-assign]
