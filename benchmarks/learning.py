"""Captions satisfied by flow matching and DTM as a function of the number of steps.

    python benchmarks/learning.py shapes-fm shapes-dtm-mean [--prompts 1000] [--out docs/results/learning.json]

Models are names or folders of runs. For each setting, the guidance scale that satisfies the most validation captions is
evaluated on the test split (other scenes, other noise). The setting of each model that is best on the validation split
is also evaluated on sentences withheld from training. Settings that the result file already has for the same weights
are skipped. Finally, the cheapest setting of each model within 1% of the first model's best is timed, alternating
between models. `make docs` writes docs/learning.md from the result.
"""

import argparse
import hashlib
import json
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from tmatch.data import ShapeImages
from tmatch.datasets import shapes_split
from tmatch.eval.evaluate import evaluate
from tmatch.generation import TextToImage
from tmatch.generation.config import SamplingConfig
from tmatch.runs import load_model

GUIDANCE = (1.0, 1.5, 2.0, 3.0)
STEPS = (1, 2, 4, 8, 16, 32, 64, 128)  # for models without a head
GRID = [(steps, head) for steps in (1, 2, 4, 8, 16, 32) for head in (1, 2, 4, 8, 16)]
SHOWN = ("model", "steps", "head_steps", "guidance", "captions_satisfied", "head_evaluations")
Row = dict[str, Any]


def settings_of(pipeline: TextToImage) -> list[tuple[int, int]]:
    return GRID if pipeline.model.kernel.head is not None else [(steps, 1) for steps in STEPS]


def digest(model: str) -> str:
    """Digest of the weights."""
    return hashlib.sha256((load_model(model).folder / "model.safetensors").read_bytes()).hexdigest()[:12]


def satisfied(model: str, prompts: ShapeImages, steps: int, head: int, guidance: float) -> Row:
    """Captions satisfied at one setting."""
    sampling = SamplingConfig(steps=steps, head_steps=head, guidance=guidance)
    return evaluate(load_model(model).pipeline, prompts.captions, sampling=sampling)


def measure(model: str, steps: int, head: int, prompts: int, validation: int) -> Row:
    """One setting: guidance chosen on the validation split, result on the test split."""
    chosen_by = shapes_split(validation, "validation")
    shares = {w: satisfied(model, chosen_by, steps, head, w)["captions_satisfied"] for w in GUIDANCE}
    guidance = max(shares, key=lambda w: shares[w])
    tested = satisfied(model, shapes_split(prompts, "test"), steps, head, guidance)
    row = {
        "model": Path(model).name,
        "weights": digest(model),
        "steps": steps,
        "head_steps": head,
        "guidance": guidance,
    }
    return {**row, "validation": shares, **tested}


def chosen(rows: list[Row], model: str, prompts: int) -> Row:
    """The best setting on the validation split (the cheapest if tied), also evaluated on withheld sentences."""
    own = sorted((row for row in rows if row["model"] == Path(model).name), key=cost)
    best = max(own, key=lambda row: max(row["validation"].values()))
    setting = (best["steps"], best["head_steps"], best["guidance"])
    return {**best, "withheld": satisfied(model, shapes_split(prompts, "withheld"), *setting)}


def cheapest(rows: list[Row], model: str, bar: float) -> Row | None:
    """The cheapest setting of a model that reaches the threshold."""
    enough = [row for row in rows if row["model"] == Path(model).name and row["captions_satisfied"] >= bar]
    return min(enough, key=lambda row: cost(row), default=None)


def cost(row: Row) -> float:
    """Network evaluations; one of the head costs about 0.15 of one of the backbone."""
    return float(row["backbone_evaluations"] + 0.15 * row["head_evaluations"])


def timed(models: list[str], rows: list[Row], bar: float, repeats: int = 9) -> list[Row]:
    """Median milliseconds per image of the cheapest settings within 1% of the best, alternating between models."""
    found = {model: row for model in models if (row := cheapest(rows, model, bar)) is not None}
    pipelines = {model: load_model(model).pipeline for model in found}
    prompts = shapes_split(64, "validation")
    seconds: dict[str, list[float]] = {model: [] for model in found}
    for _ in range(repeats):
        for model, row in found.items():
            setting = {key: row[key] for key in ("steps", "head_steps", "guidance")}
            result = pipelines[model].generate(prompts.captions, range(64), SamplingConfig(**setting))
            seconds[model].append(result.seconds)
    return [
        {
            **{key: row[key] for key in SHOWN},
            "milliseconds_an_image": round(1e3 * statistics.median(seconds[m]) / 64, 2),
        }
        for m, row in found.items()
    ]


def share(row: Row) -> str:
    low, high = row["interval_95"]
    return f"**{row['captions_satisfied']:.3f}** ({low:.3f}-{high:.3f})"


def cell(row: Row | None) -> str:
    return "" if row is None else f"{share(row)}, w = {row['guidance']:g}"


def table(model: str, rows: list[Row]) -> list[str]:
    """Table of one model: steps by head steps."""
    found = {(row["steps"], row["head_steps"]): row for row in rows if row["model"] == model}
    heads = sorted({head for _, head in found})
    titles = ["captions satisfied"] if heads == [1] else [f"{head} head steps" for head in heads]
    lines = [f"| steps | {' | '.join(titles)} |", f"|---|{'---|' * len(heads)}"]
    for steps in sorted({steps for steps, _ in found}):
        lines.append(f"| {steps} | {' | '.join(cell(found.get((steps, head))) for head in heads)} |")
    return lines


def report(result: dict[str, Any]) -> str:
    """The page docs/learning.md."""
    rows = result["rows"]
    lines = ["# Captions satisfied by number of steps", "", "<!-- Generated by `make docs`; do not edit. -->", ""]
    lines += [
        f"Fraction of {rows[0]['prompts']:,} captions of held-out `shapes` scenes that the generated image satisfies,",
        "with 95% intervals. The guidance scale w is chosen per setting on a validation split. One step evaluates the",
        "backbone once and the head *head steps* times. `python benchmarks/learning.py` measures these numbers.",
        "",
        "## Best setting on the validation split",
        "",
        "Withheld sentences are colour-attribution captions that were left out of training, such as",
        f"'{shapes_split(1, 'withheld').captions[0]}'. The test split, in the columns before, samples all sentences.",
        "",
        "| model | steps | head steps | w | test | test, colour attribution only | withheld sentences |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["chosen"]:
        head = row["head_steps"] if row["head_evaluations"] else ""
        where = f"{row['model']} | {row['steps']} | {head} | {row['guidance']:g}"
        attribution = f"{row['skills']['colour attribution']:.3f}"
        lines.append(f"| {where} | {share(row)} | {attribution} | {share(row['withheld'])} |")
    lines.append("")
    for model in dict.fromkeys(row["model"] for row in rows):
        lines += [f"## {model}", "", *table(model, rows), ""]
    lines += [f"## Cheapest setting within 1% of the best of {rows[0]['model']} ({result['best']:.3f})", ""]
    lines += ["| model | steps | head steps | captions satisfied | ms per image |", "|---|---|---|---|---|"]
    for row in result["within_1_percent"]:
        head = row["head_steps"] if row["head_evaluations"] else ""
        shown = (row["model"], row["steps"], head, f"{row['captions_satisfied']:.3f}", row["milliseconds_an_image"])
        lines.append(f"| {' | '.join(map(str, shown))} |")
    there = {row["model"] for row in result["within_1_percent"]}
    for model in dict.fromkeys(row["model"] for row in rows):
        if model not in there:
            lines += ["", f"No setting of {model} comes within 1%."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names or folders; the first one is the reference")
    parser.add_argument("--only", nargs="+", help="settings to evaluate, such as 16x4 (steps x head steps)")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--validation", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1, help="threads per process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/learning.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    digests = [digest(model) for model in args.models]
    rows: list[Row] = [row for row in result["rows"] if row["weights"] in digests]  # drops rows of other weights
    result["rows"] = rows
    done = {(row["weights"], row["prompts"], row["steps"], row["head_steps"]) for row in rows}
    wanted = [
        (model, steps, head)
        for model, weights in zip(args.models, digests, strict=True)
        for steps, head in settings_of(load_model(model).pipeline)
        if args.only is None or f"{steps}x{head}" in args.only
        if (weights, args.prompts, steps, head) not in done
    ]
    wanted.sort(
        key=lambda one: one[1] * (1 + 0.15 * one[2]), reverse=True
    )  # longest first, so that all finish together
    processes = ProcessPoolExecutor(
        args.processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(args.threads,)
    )
    with processes as pool:
        for ready in as_completed([pool.submit(measure, *one, args.prompts, args.validation) for one in wanted]):
            rows.append(ready.result())
            print({key: rows[-1][key] for key in SHOWN}, flush=True)
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    names = [Path(model).name for model in args.models]
    rows.sort(key=lambda row: (names.index(row["model"]), row["steps"], row["head_steps"]))
    best = max(row["captions_satisfied"] for row in rows if row["model"] == Path(args.models[0]).name)
    result["chosen"] = [chosen(rows, model, args.prompts) for model in args.models]
    result |= {"best": best, "within_1_percent": timed(args.models, rows, 0.99 * best)}
    print(json.dumps(result["within_1_percent"], indent=2))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
