"""Optimizers: AdamW, and Muon for the matrices of the blocks with AdamW for the rest."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from tmatch.train.config import TrainConfig

POLAR_EXPRESS = (
    (7.710970235430838, -22.11375714092634, 16.248744358847038),
    (3.2152762847843466, -2.4111723963453673, 0.5013001034941961),
    (2.2183075892537927, -1.5939894720203795, 0.41074787165067833),
)
"""Coefficients (a, b, c) of x -> a x + b x^3 + c x^5, one for each iteration.

They map [0.02, 1] to 1 as closely as three iterations can, by the recursion of Amsel et al. (2025), who print those for
[0.001, 1]. A CPU spends a third of the step of a small model on five iterations.
"""


def orthogonalized(x: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices to x (..., m, n), roughly: singular values are within 0.1 of 1.

    Those below a fiftieth of the norm of x are smaller. Products are in bfloat16 on a GPU, and in float32 on a CPU,
    since CPUs mostly emulate bfloat16.
    """
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x).to(torch.float32 if x.device.type == "cpu" else torch.bfloat16)
    y = y / (1.01 * torch.linalg.matrix_norm(y, keepdim=True) + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        square = y @ y.mT
        y = a * y + (b * square + c * square @ square) @ y
    return (y.mT if tall else y).to(x.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized (Jordan et al., 2024), with decoupled weight decay.

    The step of a matrix is scaled to the size of an AdamW step (Liu et al., 2025), so both share a learning rate.
    `torch.optim.Muon` takes one matrix at a time and always computes in bfloat16. Matrices of equal shape are stacked
    here; those of several square ones, such as the projections to queries, keys and values, are taken apart first.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"momentum": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            steps = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    average = self.state[parameter]["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    steps[parameter.shape].append((parameter, parameter.grad.lerp(average, group["momentum"])))
            for (rows, columns), found in steps.items():
                parts = rows // columns if rows in (2 * columns, 3 * columns) else 1
                stacked = torch.stack([_whole(step) for _, step in found]).unflatten(1, (parts, -1))
                scale = 0.2 * max(rows // parts, columns) ** 0.5
                for (parameter, _), step in zip(found, orthogonalized(stacked).flatten(1, 2), strict=True):
                    parameter.add_(_like(parameter, step), alpha=-group["lr"] * scale)


def _whole(x: Tensor) -> Tensor:
    """All of a tensor that FSDP may have sharded."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def _like(parameter: Tensor, x: Tensor) -> Tensor:
    """A tensor that all processes have, sharded like a parameter."""
    if not isinstance(parameter, DTensor):
        return x
    return distribute_tensor(x, parameter.device_mesh, parameter.placements, src_data_rank=None)


def build_optimizers(networks: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """The optimizers of all weights that are trained, with their states allocated."""
    trained = [parameter for parameter in networks.parameters() if parameter.requires_grad]
    found = _matrices(networks) if config.optimizer == "muon" else []
    matrices = [parameter for parameter in found if parameter.requires_grad]
    ids = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in trained if id(parameter) not in ids]
    optimizers: list[torch.optim.Optimizer] = []
    if rest:
        betas, decay = config.betas, config.weight_decay
        optimizers += [torch.optim.AdamW(rest, config.learning_rate, betas, weight_decay=decay, fused=True)]
        for parameter in rest:  # as AdamW does at its first step
            moments = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            optimizers[0].state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}
    if matrices:
        optimizers += [Muon(matrices, config.learning_rate, weight_decay=config.weight_decay)]
    return optimizers


def _matrices(networks: nn.Module) -> list[Tensor]:
    """The weights of the linear layers in lists of blocks."""
    blocks = [module for module in networks.modules() if isinstance(module, nn.ModuleList)]
    layers = (layer for block in blocks for layer in block.modules())
    return list(dict.fromkeys(layer.weight for layer in layers if isinstance(layer, nn.Linear)))
