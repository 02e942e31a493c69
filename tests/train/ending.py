"""A program: pairs of processes that agree, come to rest and end as Python does; it fails where one of them dies of it.

From its last word on a process hardly lets its threads run (`setswitchinterval`): that is when one of Gloo aborts it.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from tmatch.train.parallel import DDP

PAIRS = 12


def agree(rank: int, store: Path) -> None:
    signal.alarm(200)  # not to outlive a test that was given up
    dist.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=2)
    sys.setswitchinterval(10)
    processes = DDP(torch.device("cpu"))
    assert processes.any_rank(True)
    processes.drain()


codes = []
for pair in range(PAIRS):
    children = []
    for rank in range(2):
        child = os.fork()  # at once: torch is imported
        if child == 0:
            agree(rank, Path(sys.argv[1]) / f"pair-{pair}")
            sys.exit()
        children.append(child)
    codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(codes)
sys.exit(any(codes))
