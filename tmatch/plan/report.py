"""A plan in words: tables for people, a dictionary for programs."""

from dataclasses import asdict
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from tmatch.plan.devices import GIB
from tmatch.plan.plan import SPARE, Plan

NETWORKS = ("backbone", "head", "other")
STEPS = (1, 4, 16, 32, 64, 128)
HEAD_STEPS = (1, 4, 16, 64)


def render(plan: Plan, width: int = 120) -> str:
    """The plan as tables of plain text."""
    text = StringIO()
    console = Console(file=text, width=width, color_system=None, highlight=False)
    for table in (_model(plan), _memory(plan), _training(plan), _drawing(plan), _times(plan)):
        console.print(table)
    return text.getvalue()


def record(plan: Plan) -> dict[str, Any]:
    """The plan as numbers that JSON can hold; bytes, FLOPs and seconds, unless a name says otherwise."""
    return {
        "device": plan.device.name,
        "gpus": plan.gpus,
        "batch": plan.batch,
        "micro_batch": plan.micro_batch,
        "accumulate": plan.accumulate,
        "steps": plan.steps,
        "tokens_an_image": plan.tokens,
        "precision": plan.precision,
        "utilisation": asdict(plan.utilisation),
        "parameters": dict(plan.parameters),
        "trained": dict(plan.trained),
        "flops_a_step": dict(plan.flops),
        "activations": [None if used is None else asdict(used) for used in plan.activations],
        "memory_a_rank": {
            way: {
                **asdict(memory),
                "total": memory.total,
                "fits": plan.fits(memory),
                "largest_micro_batch": plan.largest_micro_batch(memory),
            }
            for way, memory in plan.memory.items()
        },
        "seconds_a_step": plan.seconds_a_step,
        "images_a_second": plan.images_a_second,
        "tokens_a_second": plan.tokens_a_second,
        "days": plan.days,
        "gpu_hours": plan.gpu_hours,
        "drawing": {
            "transitions": plan.sampling.transitions,
            "head_steps": plan.sampling.draw.head_steps,
            "guided": plan.sampling.draw.guided,
            "images": plan.sampling.draw.images,
            "evaluations": {name: plan.sampling.evaluations(name) for name in NETWORKS},
            "flops": {name: plan.sampling.flops(name) for name in NETWORKS},
            "seconds": {name: plan.drawing(name) for name in NETWORKS},
            "at_least_seconds": plan.seconds_to_draw,
            "at_least_seconds_by_steps": {
                steps: {head: plan.seconds_with(steps, head) for head in _head_steps(plan)} for steps in _steps(plan)
            },
        },
    }


def _model(plan: Plan) -> Table:
    table = Table("part", "parameters", "trained", "TFLOPs a step", "share", title="The model")
    columns = [{**parts, "all": sum(parts.values())} for parts in (plan.parameters, plan.trained, plan.flops)]
    for part in columns[0]:
        count, trained, flops = (column[part] for column in columns)
        share = f"{flops / columns[-1]['all']:.1%}"
        table.add_row(part, f"{count / 1e6:,.1f}M", f"{trained / 1e6:,.1f}M", f"{flops / 1e12:,.1f}", share)
    return table


def _memory(plan: Plan) -> Table:
    kinds = ("weights", "gradients", "moments", "average", "copies", "activations")
    title = f"GiB on each of {plan.gpus} {plan.device.name}, {plan.micro_batch} images at a time, {plan.precision}"
    spare = f"{plan.device.memory / GIB:.0f} GiB each, of which {SPARE:.0%} is left free. "
    again = "Checkpointing computes blocks twice; times are of the model as it was built."
    caption = spare + (again if plan.activations[1] else "This backbone has no checkpointing.")
    table = Table(title=title, caption=caption)
    table.add_column(no_wrap=True)
    for heading in (*kinds, "in all", "fits", "room for"):
        table.add_column(heading)
    for way, memory in plan.memory.items():
        numbers = [f"{getattr(memory, kind) / GIB:.1f}" for kind in kinds]
        fits = "yes" if plan.fits(memory) else "no"
        room = f"{plan.largest_micro_batch(memory)} images"
        table.add_row(way, *numbers, f"{memory.total / GIB:.1f}", fits, room)
    return table


def _training(plan: Plan) -> Table:
    share = f"at {plan.utilisation.training:.0%} of the peak"
    table = Table("", share, title=f"Training: {plan.steps:,} steps of {plan.batch:,} images")
    parts = "at once" if plan.accumulate == 1 else f"in {plan.accumulate} parts"
    table.add_row("a step", f"{plan.seconds_a_step:,.3f} s, {parts}")
    table.add_row("speed", f"{plan.images_a_second:,.0f} images/s, {plan.tokens_a_second:,.0f} tokens/s")
    hours = 24 * plan.days
    time = f"{plan.days:,.2f} days" if hours > 2 else f"{60 * hours:,.1f} minutes"
    table.add_row("to the end", f"{time}, {plan.gpu_hours:,.{0 if plan.gpu_hours > 10 else 2}f} GPU-hours")
    return table


def _drawing(plan: Plan) -> Table:
    draw, shares = plan.sampling.draw, plan.utilisation
    images = "1 image" if draw.images == 1 else f"{draw.images} images"
    how = f"{plan.sampling.transitions} x {draw.head_steps} steps, {'guided' if draw.guided else 'not guided'}"
    title = f"Drawing {images} on one GPU: {how}; no less than {plan.seconds_to_draw:,.3f} s"
    caption = f"At {shares.backbone:.1%} of the peak for the backbone and {shares.head:.1%} for the head."
    table = Table("part", "evaluations", "GFLOPs", "seconds", title=title, caption=caption, min_width=76)
    for name in NETWORKS:
        numbers = f"{plan.sampling.evaluations(name):,}", f"{plan.sampling.flops(name) / 1e9:,.1f}"
        table.add_row(name, *numbers, f"{plan.drawing(name):,.4f}")
    return table


def _steps(plan: Plan) -> tuple[int, ...]:
    """Transitions worth a row: the model's own, where it takes no others."""
    return (plan.sampling.transitions,) if plan.sampling.draw.steps is None else STEPS


def _head_steps(plan: Plan) -> tuple[int, ...]:
    return HEAD_STEPS if plan.sampling.evaluations("head") else (plan.sampling.draw.head_steps,)


def _times(plan: Plan) -> Table:
    title = "Seconds, no less than, by transitions and head steps"
    has_head = bool(plan.sampling.evaluations("head"))
    table = Table(
        "", *(f"{head} head" if has_head else "no head" for head in _head_steps(plan)), title=title, min_width=56
    )
    for steps in _steps(plan):
        table.add_row(str(steps), *(f"{plan.seconds_with(steps, head):,.3f}" for head in _head_steps(plan)))
    return table
