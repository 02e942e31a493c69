"""Muon: what its steps are, and which weights it takes."""

import pytest
import torch
from torch import Tensor, nn

import tmatch as tm
from tmatch.train import TrainConfig
from tmatch.train.optimizer import Muon, build_optimizers, orthogonalized


def gradient(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stepped(grads: list[Tensor], optimizer: type[torch.optim.Optimizer] = Muon, **options: object) -> Tensor:
    """A matrix of ones after a step for each gradient."""
    weight = nn.Parameter(torch.ones_like(grads[0]))
    rule = optimizer([weight], lr=0.1, **options)  # type: ignore[call-arg]
    for grad in grads:
        weight.grad = grad.clone()
        rule.step()
    return weight.detach()


@pytest.mark.parametrize("shape", [(32, 32), (24, 96), (96, 24)])
def test_the_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    left, _, right = torch.linalg.svd(gradient(*shape), full_matrices=False)
    singular = torch.logspace(-1, 0, min(shape))
    assert singular.min() / singular.norm() > 0.02
    x = left * singular @ right
    values = torch.linalg.svdvals(orthogonalized(x))
    torch.testing.assert_close(values, torch.ones_like(values), rtol=0, atol=0.1)
    torch.testing.assert_close(orthogonalized(1e3 * x), orthogonalized(x))


def test_small_singular_values_grow_and_never_exceed_the_others() -> None:
    values = torch.logspace(-6, 0, 64) / torch.logspace(-6, 0, 64).norm()
    found = orthogonalized(torch.diag(values)).diagonal()
    assert bool((found > values).all())
    assert found.max() < 1.1
    assert found[values < 0.01].diff().min() > 0


def test_the_steps_are_those_of_pytorch() -> None:
    """Which orthogonalizes in bfloat16, less exactly."""
    grads = [gradient(40, 16, seed=seed) for seed in range(3)]
    options = {"momentum": 0.9, "weight_decay": 0.1}
    theirs = stepped(grads, torch.optim.Muon, adjust_lr_fn="match_rms_adamw", **options)
    start = torch.ones_like(theirs)
    ours = stepped(grads[:1], **options), stepped(grads, **options)
    assert torch.cosine_similarity((ours[1] - start).flatten(), (theirs - start).flatten(), dim=0) > 0.99
    assert (ours[1] - start).norm() == pytest.approx(float((theirs - start).norm()), rel=0.1)
    assert not ours[0].equal(ours[1])


def test_stacked_projections_take_the_steps_of_each() -> None:
    parts = [gradient(16, 16, seed=seed) for seed in range(3)]
    torch.testing.assert_close(stepped([torch.cat(parts)]), torch.cat([stepped([part]) for part in parts]))


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model = tm.build("dtm", tm.DiT(4, width=16, depth=2, heads=2), 4, tm.HeadConfig(width=16, depth=2))
    config = TrainConfig(steps=1, device="cpu", optimizer="muon")
    adamw, muon = build_optimizers(model, config)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    taken = [{names[id(p)] for group in one.param_groups for p in group["params"]} for one in (adamw, muon)]
    assert taken[0] | taken[1] == set(names.values())
    assert not taken[0] & taken[1]
    assert all(name.endswith("weight") and {"0", "1"} & set(name.split(".")) for name in taken[1])  # of a block
    assert {name for name in names.values() if "attention" in name and name.endswith("weight")} <= taken[1]
    assert len(build_optimizers(model, config.model_copy(update={"optimizer": "adamw"}))) == 1
