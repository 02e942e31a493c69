import pytest
import torch

import tmatch as tm
from tmatch.plan import plan
from tmatch.plan.memory import Memory, gathered, replicated, sharded
from tmatch.plan.training import Activations

USED = Activations(kept=1000, peak=1200, copies=300)


def model() -> tm.Model:
    with torch.device("meta"):
        return tm.build("dtm", tm.DiT(16, 64, 6, 4, 8), 16, tm.HeadConfig(width=32, depth=2))


def numbers() -> int:
    return sum(p.numel() for p in model().parameters())


def test_replicated_states_take_twenty_bytes_a_parameter() -> None:
    memory = replicated(model(), USED)
    assert memory.states == 20 * numbers()
    assert memory == Memory(4 * numbers(), 4 * numbers(), 8 * numbers(), 4 * numbers(), 300, 1200)
    assert memory.total == 20 * numbers() + 300 + 1200


@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 1024])
def test_sharded_states_go_to_one_nth(ranks: int) -> None:
    whole, part = replicated(model(), USED).states, sharded(model(), USED, ranks, "bfloat16").states
    assert whole <= ranks * part <= whole + 20 * ranks  # a rank rounds up to a whole number


def test_replicas_of_shards_hold_what_as_many_fewer_gpus_would() -> None:
    states = [
        plan(model(), (4, 4, 16), 64, "H100 SXM", gpus, 10, text=(3, 8), replicas=replicas).memory["FSDP2"].states
        for gpus, replicas in ((64, 1), (64, 8), (8, 1))
    ]
    assert states[0] < states[1] == states[2]
    with pytest.raises(ValueError, match="6 GPUs do not divide into 4 replicas"):
        plan(model(), (4, 4, 16), 6, "H100 SXM", 6, 10, text=(3, 8), replicas=4)


def test_what_is_gathered_does_not_depend_on_the_ranks() -> None:
    few, many = (sharded(model(), USED, ranks, "bfloat16") for ranks in (2, 64))
    assert few.copies == many.copies == gathered(model(), "bfloat16") == gathered(model(), "float32") // 2
    assert few.activations == many.activations == 1200


def test_gradients_that_are_accumulated_are_kept_whole() -> None:
    once, often = (sharded(model(), USED, 8, "bfloat16", accumulate) for accumulate in (1, 4))
    assert often.copies - once.copies == 4 * numbers()
    assert often.states == once.states


def test_the_root_and_two_units_are_gathered_as_in_training() -> None:
    """Six blocks of one size, and a head that is smaller than any."""
    kernel = model().kernel
    assert kernel.fsdp_modules() == [*kernel.backbone.blocks, kernel.head]
    block, head = (sum(p.numel() for p in part.parameters()) for part in (kernel.backbone.blocks[0], kernel.head))
    assert head < block
    assert gathered(model(), "bfloat16") == 4 * (numbers() - 4 * block - head)
