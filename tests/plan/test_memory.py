import pytest
import torch

import tmatch as tm
from tmatch.plan.memory import Memory, gathered, replicated, sharded
from tmatch.plan.training import Activations

USED = Activations(kept=1000, peak=1200, copies=300)


def model() -> tm.Model:
    with torch.device("meta"):
        return tm.build("dtm", tm.DiT(16, 64, 6, 4, 8), 16, tm.HeadConfig(32, 2))


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


def test_what_is_gathered_does_not_depend_on_the_ranks() -> None:
    few, many = (sharded(model(), USED, ranks, "bfloat16") for ranks in (2, 64))
    assert few.copies == many.copies == gathered(model(), "bfloat16") == gathered(model(), "float32") // 2
    assert few.activations == many.activations == 1200


def test_two_blocks_and_the_root_are_gathered() -> None:
    backbone = model().kernel.backbone
    block = sum(p.numel() for p in backbone.blocks[0].parameters())
    assert gathered(backbone, "bfloat16") == 4 * (sum(p.numel() for p in backbone.parameters()) - 4 * block)
