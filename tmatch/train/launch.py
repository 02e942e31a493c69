"""The processes that torchrun started."""

import torch

from tmatch.ranks import rank_and_world_size
from tmatch.train.config import TrainConfig
from tmatch.train.distributed import Distributed


def init_distributed(config: TrainConfig) -> Distributed:
    """Join the process group of torchrun; without torchrun there is a single process."""
    config.parts()  # raises where the batch or the processes are not divisible
    if rank_and_world_size()[1] == 1:
        return Distributed()
    from tmatch.train import parallel  # takes a second, which a single process saves

    device = config.resolve_device()
    if config.parallel == "ddp":
        return parallel.DDP(device)
    return parallel.FSDP(device, torch.bfloat16 if config.precision == "bfloat16" else None, config.replicas)
