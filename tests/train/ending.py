"""A program: pairs of processes that communicate, drain and exit; it fails if one of them aborts.

After `drain` a process hardly lets its threads run (`setswitchinterval`), which is when Gloo's threads abort it.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from tmatch.train.parallel import DDP

PAIRS = 5


def communicate(rank: int, store: Path) -> None:
    signal.alarm(200)  # in case the test is killed
    dist.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=2)
    sys.setswitchinterval(1)
    distributed = DDP(torch.device("cpu"))
    assert distributed.any_rank(True)
    distributed.drain()


codes = []
for pair in range(PAIRS):  # one pair at a time: under load the threads get their turn
    children = []
    for rank in range(2):
        child = os.fork()  # torch is imported already
        if child == 0:
            communicate(rank, Path(sys.argv[1]) / f"pair-{pair}")
            sys.exit()
        children.append(child)
    codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(codes)
sys.exit(any(codes))
