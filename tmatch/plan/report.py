"""Reports of a plan: tables and JSON."""

from dataclasses import asdict
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from tmatch.plan.devices import GIB
from tmatch.plan.plan import NETWORKS, SPARE, Plan


def render(plan: Plan, width: int = 120) -> str:
    """Return the plan as tables of plain text."""
    text = StringIO()
    console = Console(file=text, width=width, color_system=None, highlight=False)
    for table in (_model(plan), _memory(plan), _training(plan), _sampling(plan)):
        console.print(table)
    return text.getvalue()


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values in bytes, FLOPs and seconds, unless a name says otherwise."""
    settings = "gpus batch micro_batch gradient_accumulation_steps steps tokens_per_image precision"
    results = "seconds_per_step images_per_second tokens_per_second days gpu_hours"
    sampled = plan.sampling
    return {
        "device": plan.device.name,
        **{name: getattr(plan, name) for name in settings.split()},
        "utilisation": asdict(plan.utilisation),
        "parameters": plan.parameters,
        "trained": plan.trained,
        "flops_per_step": plan.flops,
        "activations": [used and asdict(used) for used in plan.activations],
        "memory_per_rank": {
            strategy: {
                **asdict(memory), "total": memory.total, "fits": plan.fits(memory),
                "largest_micro_batch": plan.largest_micro_batch(memory),
            }
            for strategy, memory in plan.memory.items()
        },
        **{name: getattr(plan, name) for name in results.split()},
        "sampling": {
            "transitions": sampled.transitions,
            "head_steps": sampled.config.head_steps,
            "last_head_steps": sampled.config.last_head_steps,
            "guided": sampled.guided,
            "images": sampled.images,
            "evaluations": {name: sampled.evaluations(name) for name in NETWORKS},
            "flops": {name: sampled.flops(name) for name in NETWORKS},
            "seconds": {name: plan.sampling_seconds(name) for name in NETWORKS},
            "min_seconds": plan.sampling_seconds(),
        },
    }  # fmt: skip


def _model(plan: Plan) -> Table:
    table = Table("part", "parameters", "trained", "TFLOPs per step", "fraction", title="Model")
    columns = [{**parts, "all": sum(parts.values())} for parts in (plan.parameters, plan.trained, plan.flops)]
    for part in columns[0]:
        count, trained, flops = (column[part] for column in columns)
        fraction = f"{flops / columns[-1]['all']:.1%}"
        table.add_row(part, f"{count / 1e6:,.1f}M", f"{trained / 1e6:,.1f}M", f"{flops / 1e12:,.1f}", fraction)
    return table


def _memory(plan: Plan) -> Table:
    kinds = ("weights", "gradients", "moments", "average", "copies", "activations")
    gpus = f"GiB per GPU ({plan.gpus} x {plan.device.name})"
    spare = f"{plan.device.memory / GIB:.0f} GiB per GPU, of which {SPARE:.0%} is reserved. "
    times = "Checkpointing recomputes blocks; times are for the model as built."
    table = Table(
        Column(no_wrap=True), *kinds, "total", "fits", "largest micro-batch",
        title=f"{gpus}, micro-batches of {plan.micro_batch} images, {plan.precision}",
        caption=spare + (times if plan.activations[1] else "This backbone does not support checkpointing."),
    )  # fmt: skip
    for strategy, memory in plan.memory.items():
        numbers = [f"{getattr(memory, kind) / GIB:.1f}" for kind in (*kinds, "total")]
        table.add_row(strategy, *numbers, "yes" if plan.fits(memory) else "no", str(plan.largest_micro_batch(memory)))
    return table


def _training(plan: Plan) -> Table:
    utilisation = f"at {plan.utilisation.training:.0%} of the peak"
    table = Table("", utilisation, title=f"Training: {plan.steps:,} steps of {plan.batch:,} images")
    table.add_row("step", f"{plan.seconds_per_step:,.3f} s, {plan.gradient_accumulation_steps} micro-batches per GPU")
    table.add_row("speed", f"{plan.images_per_second:,.0f} images/s, {plan.tokens_per_second:,.0f} tokens/s")
    hours = 24 * plan.days
    time = f"{plan.days:,.2f} days" if hours > 2 else f"{60 * hours:,.1f} minutes"
    table.add_row("total", f"{time}, {plan.gpu_hours:,.{0 if plan.gpu_hours > 10 else 2}f} GPU-hours")
    return table


def _sampling(plan: Plan) -> Table:
    sampled, utilisation = plan.sampling, plan.utilisation
    images = "1 image" if sampled.images == 1 else f"{sampled.images} images"
    guided = "with guidance" if sampled.guided else "without guidance"
    first, last = sampled.config.head_steps, sampled.config.last_head_steps
    steps = f"{sampled.transitions} x {first if last is None else f'{first} to {last}'} steps {guided}"
    title = f"Sampling {images} on one GPU: {steps}, at least {plan.sampling_seconds():,.3f} s"
    caption = f"At {utilisation.backbone:.1%} of the peak for the backbone and {utilisation.head:.1%} for the head."
    table = Table("network", "evaluations", "GFLOPs", "seconds", title=title, caption=caption, min_width=76)
    for name in NETWORKS:
        numbers = f"{sampled.evaluations(name):,}", f"{sampled.flops(name) / 1e9:,.1f}"
        table.add_row(name, *numbers, f"{plan.sampling_seconds(name):,.4f}")
    return table
