"""`tmatch plan`."""

import sys
from dataclasses import dataclass

import torch

from tmatch.plan import Draw, Plan, Precision, Utilisation, plan
from tmatch.recipes import Recipe
from tmatch.runs.base import AssumedData, InputShapes, TrainedRecipe
from tmatch.tensors import positive_int


@dataclass(frozen=True)
class Hardware:
    """What a recipe would run on."""

    gpus: int = 1
    """how many"""
    device: str = "H100 SXM"
    """which: H100 SXM, A100 80GB, A100 40GB, L40S, RTX 4090, RTX 3090"""
    precision: Precision | None = None
    """of matrix products; none for the recipe's"""
    utilisation: Utilisation = Utilisation()
    """share of the peak that is reached"""


def _say(sizes: InputShapes) -> None:
    """Tell whose sizes are planned with, beside the plan itself."""
    tokens, channels = sizes.shape[0] * sizes.shape[1], sizes.shape[2]
    text = f"{sizes.text[0]} of {sizes.text[1]} a text"
    print(f"tmatch: {tokens} tokens of {channels} an image, {text}: {sizes.origin}", file=sys.stderr)


def planned(recipe: Recipe, hardware: Hardware, expected: AssumedData) -> Plan:
    """The plan of a recipe."""
    if not isinstance(recipe, TrainedRecipe):
        raise ValueError("Only generators are planned, and this is the recipe of an autoencoder.")
    sizes, train, how = recipe.sizes(expected), recipe.train, recipe.sampling
    _say(sizes)
    with torch.device("meta"):
        model = recipe.network(sizes.shape, sizes.text[1], sizes.codes)
        recipe.init.preflight(model)
    positive_int("The number of GPUs", hardware.gpus)
    if train.batch_size % (hardware.gpus * train.gradient_accumulation_steps):
        raise ValueError(
            f"A batch of {train.batch_size} does not divide among {hardware.gpus} GPUs in {train.gradient_accumulation_steps} parts each; "
            "set --train.batch-size or --train.gradient-accumulation-steps."
        )
    return plan(
        model, sizes.shape, train.batch_size, hardware.device, hardware.gpus, train.steps, text=sizes.text,
        micro_batch=train.batch_size // (hardware.gpus * train.gradient_accumulation_steps), replicas=train.replicas,
        precision=hardware.precision or train.precision, utilisation=hardware.utilisation,
        draw=Draw(how.steps, how.head_steps, guided=how.guidance != 1, iterations=how.iterations),
    )  # fmt: skip
