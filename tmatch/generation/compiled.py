"""Compilation of the networks that sampling calls repeatedly."""

from typing import Any

import torch

from tmatch.model import Model

OPTIONS: dict[str, Any] = {"options": {"freezing": True, "cpp_wrapper": True}}
"""Options of `torch.compile`: weights are constants, and the compiled code runs without Python."""


def compile_for_sampling(model: Model, **options: Any) -> None:  # noqa: ANN401
    """Compile a model's networks in place: the backbone, and the head together with its solver.

    Weights become constants, so loading others later has no effect. The first image takes a minute or more and needs a
    C++ compiler; it pays off where sampling makes many small calls, as in token-by-token decoding. `options` are
    passed to `torch.compile`.
    """
    model.requires_grad_(False)
    options = options or OPTIONS
    backbone, distribution = model.kernel.backbone, model.kernel.distribution
    backbone.forward = torch.compile(backbone.forward, **options)
    if distribution is not None and distribution.head is not None:
        distribution.forward = torch.compile(distribution.forward, **options)  # type: ignore[method-assign]
