"""The rank of this process, from the environment that torchrun sets."""

import os


def rank_and_world_size() -> tuple[int, int]:
    """Return RANK and WORLD_SIZE; (0, 1) without torchrun."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and world.isdigit() and int(rank) < int(world)):
        raise ValueError(f"RANK={rank} and WORLD_SIZE={world} do not agree: torchrun sets both; unset them without it.")
    return int(rank), int(world)


def local_rank_and_world_size() -> tuple[int, int]:
    """Return LOCAL_RANK and LOCAL_WORLD_SIZE; the global ones where they are not set."""
    rank, world = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdigit() and world.isdigit() else rank_and_world_size()
