"""The rank of this process, from the environment that torchrun sets."""

import os


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and how many there are, as torchrun tells them."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and world.isdigit() and int(rank) < int(world)):
        raise ValueError(
            f"RANK={rank} is none of WORLD_SIZE={world} processes: torchrun sets both; unset them without it."
        )
    return int(rank), int(world)


def local_rank_and_world_size() -> tuple[int, int]:
    """This process's rank among those of its machine, and how many these are; by torchrun, or as among all."""
    rank, world = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdigit() and world.isdigit() else rank_and_world_size()
