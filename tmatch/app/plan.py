"""`tmatch plan`."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from tmatch.app.tables import JsonFlag
from tmatch.conditioning import ClassLabels
from tmatch.plan import Plan, Utilisation, plan, render, to_json
from tmatch.runs import AnyRun, RunConfig
from tmatch.runs.finetune import preflight_init
from tmatch.tensors import Precision


@dataclass(frozen=True)
class Hardware:
    """The hardware to plan for."""

    gpus: int = 1
    """number of GPUs"""
    device: str = "H100 SXM"
    """kind of GPU: H100 SXM, A100 80GB, A100 40GB, L40S, RTX 4090, RTX 3090"""
    precision: Precision | None = None
    """precision of matrix products; None uses the recipe's"""
    utilisation: Utilisation = Utilisation()
    """fraction of the peak that is reached"""


def main(
    recipe: AnyRun,
    *,
    hardware: Annotated[Hardware, tyro.conf.arg(name="")] = Hardware(),
    config: Path | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate parameters, FLOPs, memory, training days and seconds per image of a recipe; nothing is allocated.

    Args:
        recipe: what to plan; every setting can be overridden.
        hardware: the hardware to plan for.
        config: YAML file of settings that override the recipe's; options override the file.
    """
    with Console(stderr=True).status("counting FLOPs and memory"):  # which a terminal alone shows
        found = plan_run(recipe, hardware)
    print(json.dumps(to_json(found), indent=2) if as_json else render(found).rstrip("\n"))


def plan_run(recipe: AnyRun, hardware: Hardware) -> Plan:
    """The plan of a recipe."""
    if not isinstance(recipe, RunConfig):
        raise ValueError("`tmatch plan` plans generators; this is the recipe of an autoencoder.")
    sizes, train = recipe.input_shapes(), recipe.train
    (rows, columns, channels), (length, width) = sizes.shape, sizes.text
    condition = f"{length} text tokens" if sizes.classes is None else f"one of {sizes.classes:,} class tokens"
    data = f"{rows * columns} tokens of {channels} channels per image, {condition} of {width} channels"
    print(f"tmatch: {data}: {sizes.origin}", file=sys.stderr)
    with torch.device("meta"):
        model = recipe.network(sizes.shape, width, sizes.codebook_size)
        preflight_init(recipe.init, model)
        if sizes.classes is not None and width is not None:  # the class table is trained with the model
            model.add_module("labels", ClassLabels(sizes.classes, width).requires_grad_(not recipe.init.freeze))
    return plan(
        model, sizes.shape, train.batch_size, hardware.device, hardware.gpus, train.steps,
        text=None if width is None else (length, width), replicas=train.replicas,
        gradient_accumulation_steps=train.gradient_accumulation_steps, utilisation=hardware.utilisation,
        precision=hardware.precision or train.precision, sampling=recipe.sampling,
    )  # fmt: skip
