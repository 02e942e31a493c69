"""The whole family on `shapes`: each variant trained for the same seconds, captions satisfied, evaluations an image.

    python benchmarks/family.py [--share 0.3] [--only shapes-ar shapes-artm-3] [--runs runs/family]

Trains the recipes, whose numbers of steps stand for equal seconds of one core, for a share of their steps, two at a
time, a core each; runs that were begun go on, and finished ones are not trained again. Each is then sampled with its
own steps, or where it takes any number with 16 or 64; these, the head's steps and then the guidance are chosen on 200
captions of the validation split, and the figure is that of 1,000 of the test split. Intervals are of the captions; the
training has one seed.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from tmatch.datasets import shapes_split
from tmatch.eval.evaluate import evaluate
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig
from tmatch.recipes import RECIPES
from tmatch.runs import RunConfig, fit, load_model

GUIDANCE = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FIRST = 2.0  # the guidance at which steps are chosen
HEAD_STEPS = (4, 16)
STEPS = (16, 64)  # of variants that take any number
FAMILY = [
    f"shapes-{name}"
    for name in (
        "fm", "dtm", "dtm-mean", "ar", "artm-2", "artm-3", "artm-3-dependent", "fhtm-2", "fhtm-2-llama", "fhtm-3",
        "fhtm-3-llama", "fhtm-3-dependent", "mar", "mar-fluid", "martm-2", "ar-discrete", "mar-discrete",
    )
]  # fmt: skip
Row = dict[str, Any]


def shortened(name: str, share: float) -> RunConfig:
    """A recipe with a share of its steps; the schedule goes with them."""
    recipe = RECIPES[name]()
    assert isinstance(recipe, RunConfig)
    steps = round(share * recipe.train.steps)
    train = recipe.train.model_copy(update={"steps": steps, "validate_every": 1000, "preview_every": steps})
    return recipe.model_copy(update={"train": train, "eval_prompts": 100})  # it is measured better below


def chosen(recipe: RunConfig, pipeline: TextToImage, validation: int) -> SamplingConfig:
    """Steps, steps of the head, guidance: one after the other, those with the most captions of validation satisfied."""

    def satisfied(sampling: SamplingConfig) -> float:
        measured = evaluate(pipeline, shapes_split(validation, "validation").captions, sampling=sampling)
        return float(measured["captions_satisfied"])

    own = recipe.sampling.model_copy(update={"guidance": FIRST})
    if own.steps is not None:
        own = max((own.model_copy(update={"steps": steps}) for steps in STEPS), key=satisfied)
    if pipeline.model.kernel.head is not None:
        own = max((own.model_copy(update={"head_steps": steps}) for steps in HEAD_STEPS), key=satisfied)
    return max((own.model_copy(update={"guidance": w}) for w in GUIDANCE), key=satisfied)


def choices(validation: int) -> dict[str, Any]:
    """What the settings of a row are chosen from, and on how many captions: rows are compared where it is the same."""
    return {"guidance": list(GUIDANCE), "head_steps": list(HEAD_STEPS), "steps": list(STEPS), "captions": validation}


def trained_and_measured(name: str, share: float, runs: Path, prompts: int, validation: int) -> Row:
    """One variant."""
    torch.set_num_threads(1)
    recipe = shortened(name, share)
    started = time.process_time()
    if fit(recipe, runs / name) is None:
        raise KeyboardInterrupt
    seconds = time.process_time() - started
    pipeline = load_model(str(runs / name)).pipeline
    own = chosen(recipe, pipeline, validation)
    tested = evaluate(pipeline, shapes_split(prompts, "test").captions, sampling=own)
    return {
        "model": name,
        "variant": recipe.variant,
        "backbone": recipe.backbone.kind,
        "parameters": sum(p.numel() for p in pipeline.model.parameters()),
        "train_steps": recipe.train.steps,
        "cpu_seconds": round(seconds),
        "steps": own.steps,
        "head_steps": own.head_steps,
        "guidance": own.guidance,
        "chosen_from": choices(validation),
        **tested,
    }


def report(result: dict[str, Any]) -> str:
    """The table, as docs/family.md."""
    rows, share = result["rows"], "all" if result["share"] == 1 else f"{result['share']:g}"
    lines = [
        "# The family on `shapes`",
        "",
        "Written by `python benchmarks/family.py`; do not edit.",
        "",
        f"Each trained for {share} of its recipe's steps, which stand for equal seconds of one core;",
        f"{rows[0]['prompts']:,} captions of held-out scenes, 95% intervals; steps where any number will do, head",
        "steps and guidance w chosen on a validation split.",
        "",
        "| model | backbone | parameters | trained, steps | CPU s | w | captions satisfied | backbone | head |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["interval_95"]
        shown = (
            row["model"], row["backbone"], f"{row['parameters'] / 1e6:.2f}M", f"{row['train_steps']:,}",
            row["cpu_seconds"], f"{row['guidance']:g}", f"**{row['captions_satisfied']:.3f}** ({low:.3f}-{high:.3f})",
            row["backbone_evaluations"], row["head_evaluations"],
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(
        [
            *lines,
            "",
            "The last two columns are evaluations an image. CPU seconds are of the process that measured a row,",
            "and fewer than it took where that process went on with a run that another had begun.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=FAMILY, choices=FAMILY, metavar="RECIPE")
    parser.add_argument("--share", type=float, default=0.3, help="of each recipe's steps")
    parser.add_argument("--runs", type=Path, default=Path("runs/family"))
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--validation", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/family.json"))
    parser.add_argument("--report", type=Path, default=Path("docs/family.md"))
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    result = json.loads(args.out.read_text()) if args.out.exists() else {}
    steps = {name: shortened(name, args.share).train.steps for name in FAMILY}
    rows: list[Row] = [  # those of the same training and measure
        row
        for row in result.get("rows", [])
        if (row["train_steps"], row["prompts"], row.get("chosen_from"))
        == (steps[row["model"]], args.prompts, choices(args.validation))
    ]
    wanted = [name for name in args.only if name not in {row["model"] for row in rows}]
    runs = args.runs / f"{args.share:g}"
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        measured = [
            pool.submit(trained_and_measured, name, args.share, runs, args.prompts, args.validation) for name in wanted
        ]
        for ready in as_completed(measured):
            rows.append(row := ready.result())
            print({key: row[key] for key in ("model", "guidance", "captions_satisfied")}, flush=True)
            rows.sort(key=lambda row: FAMILY.index(row["model"]))
            args.out.write_text(json.dumps({"share": args.share, "rows": rows}, indent=1) + "\n")
    args.report.write_text(report({"share": args.share, "rows": rows}))


if __name__ == "__main__":
    main()
