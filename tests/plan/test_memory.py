import pytest
import torch

import tmatch as tm
from tmatch.generation.config import SamplingConfig
from tmatch.plan import plan
from tmatch.plan.memory import Memory, gathered, replicated, sharded
from tmatch.plan.training import Activations

USED = Activations(kept=1000, peak=1200, copies=300)


def model() -> tm.Model:
    with torch.device("meta"):
        return tm.build("dtm", tm.DiT(16, 64, 6, 4, 8), 16, tm.HeadConfig(width=32, depth=2))


def numbers() -> int:
    return sum(p.numel() for p in model().parameters())


def states(memory: Memory) -> int:
    return memory.total - memory.copies - memory.activations


def test_ddp_states_take_twenty_bytes_per_parameter() -> None:
    memory = replicated(model(), USED)
    assert memory == Memory(4 * numbers(), 4 * numbers(), 8 * numbers(), 4 * numbers(), 300, 1200)
    assert memory.total == 20 * numbers() + 300 + 1200


@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 1024])
def test_fsdp_states_are_divided_by_the_ranks(ranks: int) -> None:
    whole, part = states(replicated(model(), USED)), states(sharded(model(), USED, ranks, "bfloat16"))
    assert whole <= ranks * part <= whole + 20 * ranks  # each rank rounds up


def test_hsdp_holds_what_one_of_its_groups_would() -> None:
    sampling = SamplingConfig(steps=1, head_steps=1)
    found = plan(model(), (4, 4, 16), 64, "H100 SXM", 64, 10, text=(3, 8), replicas=8, sampling=sampling)
    assert states(found.memory["FSDP2"]) == states(sharded(model(), USED, 8, "bfloat16"))


def test_gathered_weights_do_not_depend_on_the_ranks() -> None:
    few, many = (sharded(model(), USED, ranks, "bfloat16") for ranks in (2, 64))
    assert few.copies == many.copies == gathered(model(), "bfloat16") == gathered(model(), "float32") // 2
    assert few.activations == many.activations == 1200


def test_fsdp_keeps_full_gradients_while_it_accumulates() -> None:
    once, often = (sharded(model(), USED, 8, "bfloat16", steps) for steps in (1, 4))
    assert often.copies - once.copies == 4 * numbers()
    assert states(often) == states(once)


def test_the_root_and_two_fsdp_modules_are_gathered() -> None:
    """Six blocks of one size and a smaller head."""
    kernel = model().kernel
    assert kernel.fsdp_modules() == [*kernel.backbone.blocks, kernel.head]
    block, head = (sum(p.numel() for p in part.parameters()) for part in (kernel.backbone.blocks[0], kernel.head))
    assert head < block
    assert gathered(model(), "bfloat16") == 4 * (numbers() - 4 * block - head)
