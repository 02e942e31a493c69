"""Golden values: what every variant, a resumed training run and every shipped model compute at a fixed seed.

    python tests/goldens.py record tests/goldens.safetensors   # store the values that tests/test_goldens.py checks
    python tests/goldens.py compare CHECKOUT OTHER_CHECKOUT    # to the bit, each with its own code

Names and places may change between the two checkouts, values may not.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tmatch as tm

sys.path.insert(0, str(Path(__file__).parent))
from laws import condition, data_of, shape_of, small_model, steps_of
from train.small_run import trainer

PROMPTS = (
    "a triangle", "a yellow cross", "three squares", "four circles", "a circle and a square",
    "a cross above a triangle", "a square left of a triangle", "a red circle and a blue square",
    "a green cross and a purple triangle",
)  # fmt: skip
SAMPLED_WITH: dict[str, tuple[str, tm.Sampler]] = {"ddim": ("ddpm", tm.DDIMSampler())}  # a former variant
VARIANTS = (*tm.VARIANTS, *SAMPLED_WITH)
MODELS = ("shapes-artm-3", "shapes-dtm-from-fm", "shapes-dtm-mean", "shapes-fm")


def variant_values(name: str) -> dict[str, Tensor]:
    """The loss of each image, the gradient norm, and samples with and without guidance."""
    torch.manual_seed(0)
    name, sampler = SAMPLED_WITH.get(name, (name, tm.Sampler()))
    model = small_model(name)
    loss = model.loss(data_of(name, 3), tm.RandomStreams(range(3)), condition(3))
    loss.mean().backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    guidance = tm.ClassifierFreeGuidance(condition(1, seed=9), scale=2.5)
    samples = {
        kind: tm.generate(model, shape_of(name), range(2), condition(2), steps=steps_of(name), params=params,
                          sampler=sampler).x
        for kind, params in {"sample": tm.SamplingParams(), "guided": tm.SamplingParams(guidance=guidance)}.items()
    }  # fmt: skip
    return {"loss": loss.detach(), "gradient": norm, **samples}


def trainer_values(out: Path) -> dict[str, Tensor]:
    """Twenty steps, stopped after ten and resumed."""
    trainer(out, awake=True, steps=20).run(until=10)
    run = trainer(out, awake=True, steps=20)
    run.run()
    losses = torch.tensor([line["loss"] for line in run.monitor.losses.read()], dtype=torch.float64)
    return {"losses": losses, "weights": weight_norms(run.task.state_dict()), "ema": weight_norms(run.ema.state_dict())}


def recipe_values(out: Path, name: str) -> dict[str, Tensor]:
    """A recipe as the command line trains it, for ten steps and then for ten more."""
    from tmatch.recipes import RECIPES
    from tmatch.runs import fit

    for steps in (10, 20):
        recipe = RECIPES[name]()
        train = {"steps": steps, "batch_size": 8, "warmup": 2, "cooldown": 0.0, "validate_every": 0}
        recipe = recipe.model_copy(
            update={
                "train": recipe.train.model_copy(update=train), "validation_images": 8, "eval_prompts": 8,
                "data": recipe.data.model_copy(update={"images": 64}),
            }
        )  # fmt: skip
        fit(recipe, out)
    return {"weights": weight_norms(load_file(out / "model.safetensors"))}


def weight_norms(weights: dict[str, Tensor]) -> Tensor:
    """A sum over each tensor, in an order that does not depend on names."""
    sums = [(w.numel(), float(w.double().square().sum()), float(w.double().sum())) for w in weights.values()]
    return torch.tensor(sorted(sums), dtype=torch.float64)[:, 1:]


def model_values(name: str) -> dict[str, Tensor]:
    """What `tmatch generate` makes of nine prompts."""
    from tmatch.runs import load_model

    model = load_model(name)
    return {"images": model.pipeline.generate(PROMPTS, range(len(PROMPTS)), model.config.run.sampling).images}


def values(group: str) -> dict[str, Tensor]:
    """The golden values of one group."""
    torch.set_num_threads(1)
    kind, _, name = group.partition("/")
    if kind == "variant":
        return variant_values(name)
    if kind == "model":
        return model_values(name)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        return trainer_values(out) if kind == "trainer" else recipe_values(out, name)


GROUPS = (
    *(f"variant/{name}" for name in VARIANTS),
    "trainer/dtm",
    "recipe/shapes-dtm",
    "recipe/shapes-dtm-from-fm",
    *(f"model/{name}" for name in MODELS),
)


def reduced(x: Tensor) -> Tensor:
    """Few numbers that stand for many, to store: means over blocks of an image."""
    return torch.nn.functional.avg_pool2d(x, 8) if x.ndim == 4 and x.shape[-1] >= 32 else x


def record(file: Path, groups: tuple[str, ...] = GROUPS, whole: bool = False) -> None:
    """Write golden values: those to store, or `whole` ones to compare with another checkout."""
    found = {f"{group}/{key}": x for group in groups for key, x in values(group).items()}
    save_file({key: (x if whole else reduced(x)).contiguous() for key, x in found.items()}, file)


def compare(first: Path, second: Path) -> None:
    """Compare two checkouts to the bit, each with its own package and its own copy of this file."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{index}.safetensors" for index in range(2)]
        for checkout, file in zip((first, second), files, strict=True):
            command = [sys.executable, "tests/goldens.py", "whole", str(file)]
            subprocess.run(command, cwd=checkout, env={"PYTHONPATH": ".", "PATH": "/usr/bin:/bin"}, check=True)
        one, other = map(load_file, files)
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
    different = [key for key in one if not torch.equal(one[key], other[key])]
    print(f"{len(one) - len(different)} of {len(one)} golden values are identical to the bit")
    if different:
        sys.exit("different: " + ", ".join(different))


if __name__ == "__main__":
    command, *places = sys.argv[1:]
    if command == "compare":
        compare(*map(Path, places))
    else:
        record(Path(places[0]), whole=command == "whole")
