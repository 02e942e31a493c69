"""Quality against evaluations and time on `shapes`, for every kernel with the same choice of samplers.

    python benchmarks/samplers.py [--prompts 1000] [--out docs/results/samplers.json]
    python benchmarks/samplers.py --models shapes-fm shapes-dtm-from-fm runs/patch runs/joint \
        --samplers "Algorithm 2" --out docs/results/heads.json

The second one compares heads on the same backbone: those of the recipes shapes-dtm-patch and shapes-dtm-joint.

For each model and sampler, guidance, grid and the sampler's own number are chosen at 16 evaluations of the backbone on
validation prompts; each number of evaluations is then measured on test prompts with fresh seeds, and all settings are
timed in turns. Settings that the result file already has for the same weights are skipped, so the command resumes.
`make docs` writes docs/samplers.md and docs/heads.md from the results.
"""

import argparse
import hashlib
import json
import shlex
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from tmatch.datasets import shapes_split
from tmatch.eval.evaluate import evaluate
from tmatch.generation.config import SamplingConfig
from tmatch.runs import load_model

MODELS = ("shapes-fm", "shapes-dtm-from-fm", "shapes-dtm-mean")
EVALUATIONS = (2, 4, 8, 12, 16, 32, 64)
CHOSEN_AT = 16
SAMPLERS: dict[str, tuple[str, ...]] = {
    "Algorithm 2": ("default",), "overshoot": ("overshoot:0.2", "overshoot:0.5"), "ab2": ("ab2",), "unipc": ("unipc",),
    "glass": ("glass",),
}  # fmt: skip
"""What each row may choose as its sampler."""
GUIDANCE, GRIDS = (1.5, 2.0, 3.0), (None, "shifted:2")
METRICS = ("captions", "frechet", "energy")
HIDDEN = ("tried", "sampling", "skills", "weights")
FRESH = 1_000_000
"""First seed of the test."""
Row = dict[str, Any]


def digest(model: str) -> str:
    """Digest of the weights."""
    return hashlib.sha256((load_model(model).folder / "model.safetensors").read_bytes()).hexdigest()[:12]


def settings(sampler: str, evaluations: int, **options: Any) -> SamplingConfig:  # noqa: ANN401
    """The sampler with a number of backbone evaluations: glass takes up to four per transition, the others one."""
    inner = min(4, evaluations) if sampler == "glass" else 1
    solver = {"solver": "ab2", "head_steps": inner} if sampler == "glass" else {}
    return SamplingConfig(sampler=sampler, steps=evaluations // inner, **solver, **options)


def choose(model: str, name: str, validation: int) -> Row:
    """The options of the most validation captions satisfied."""
    images, pipeline = shapes_split(validation, "validation"), load_model(model).pipeline
    tried = []
    for sampler, guidance, grid in product(SAMPLERS[name], GUIDANCE, GRIDS):
        config = settings(sampler, CHOSEN_AT, guidance=guidance, grid=grid)
        share = evaluate(pipeline, images.captions, sampling=config)["captions_satisfied"]
        tried.append({"sampler": sampler, "guidance": guidance, "grid": grid, "validation": share})
    best = max(tried, key=lambda one: one["validation"])
    return {"model": Path(model).name, "weights": digest(model), "name": name, "tried": tried, **best}


def measure(model: str, choice: Row, evaluations: int, prompts: int) -> Row:
    """One setting on the test split."""
    options = {key: choice[key] for key in ("guidance", "grid")}
    config = settings(choice["sampler"], evaluations, **options)
    images, loaded = shapes_split(prompts, "test"), load_model(model)
    reference = loaded.config.run.data.eval_reference("test")
    found = evaluate(loaded.pipeline, images.captions, reference, METRICS, config, first_seed=FRESH)
    which = {key: choice[key] for key in ("model", "weights", "name")}
    return {**which, "evaluations": evaluations, "sampling": config.model_dump(), **found}


def seconds_per_image(models: list[str], rows: list[Row], repeats: int, images: int = 32) -> list[float]:
    """The median of every row, with all rows in turns."""
    pipelines = {Path(model).name: load_model(model).pipeline for model in models}
    prompts = shapes_split(images, "validation").captions
    configs = [SamplingConfig.model_validate_json(json.dumps(row["sampling"])) for row in rows]
    seconds: list[list[float]] = [[] for _ in rows]
    for _ in range(repeats):
        for row, config, found in zip(rows, configs, seconds, strict=True):
            found.append(pipelines[row["model"]].generate(prompts, range(images), config).seconds / images)
    return [statistics.median(found) for found in seconds]


def timed(models: list[str], rows: list[Row], repeats: int) -> None:
    """Write the milliseconds per image of every row."""
    for row, seconds in zip(rows, seconds_per_image(models, rows, repeats), strict=True):
        row["ms_per_image"] = round(1e3 * seconds, 2)


def time_to_quality(rows: list[Row]) -> Row:
    """Milliseconds to the best quality of flow matching with Euler steps, by each model and sampler."""
    euler = [row for row in rows if (row["model"], row["name"]) == ("shapes-fm", "Algorithm 2")]
    best = max(euler, key=lambda row: (row["captions_satisfied"], -row["evaluations"]))
    found: Row = {"bar": best["captions_satisfied"], "euler": best["ms_per_image"], "cheapest": {}}
    for model, name in dict.fromkeys((row["model"], row["name"]) for row in rows):
        own = [row for row in rows if (row["model"], row["name"]) == (model, name)]
        enough = [row for row in own if row["captions_satisfied"] >= found["bar"]]
        if enough:
            row = min(enough, key=lambda row: row["ms_per_image"])
            short = {key: row[key] for key in ("evaluations", "captions_satisfied", "ms_per_image")}
            short["times_less"] = round(found["euler"] / row["ms_per_image"], 2)
            found["cheapest"][f"{model}, {name}"] = short
    return found


def interval(share: float, bounds: list[float]) -> str:
    """A fraction with its interval."""
    return f"{share:.3f} ({bounds[0]:.3f}-{bounds[1]:.3f})"


def cells(row: Row) -> str:
    share = interval(row["captions_satisfied"], row["interval_95"])
    measures = f"{row['frechet_distance']:.1f} | {row['energy_distance']:.4f}"
    return f"{row['evaluations']} | {row['head_evaluations']} | {share} | {measures} | {row.get('ms_per_image', '')}"


def report(result: Row) -> str:
    """The page docs/samplers.md or docs/heads.md."""
    rows, command = result["rows"], result["command"]
    title = "Samplers" if len({row["name"] for row in rows}) > 1 else "Heads"
    lines = [f"# {title}", "", "<!-- Generated by `make docs`; do not edit. -->", ""]
    lines += [
        f"{rows[0]['prompts']:,} captions of held-out `shapes` scenes, fresh seeds, 95% intervals. Frechet distance",
        "(FD) and energy distance are between latents of the images and of 10,000 real ones. For as many real images,",
        "FD is about 8.9 and the energy distance 0.000 (standard deviation 0.003). Guidance w, the grid and the number",
        f"of overshoot are chosen on validation prompts at {CHOSEN_AT} evaluations, for every row alike. Backbone and",
        "head are evaluations per image, and milliseconds are for a batch of 32 without decoding, on one CPU thread,",
        f"all rows in turns. `{command}` measures these numbers.",
        "",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        lines += [f"## {model}", "", "| sampler | backbone | head | captions satisfied | FD | energy | ms per image |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for choice in (choice for choice in result["chosen"] if choice["model"] == model):
            grid = f", {choice['grid']}" if choice["grid"] else ""
            title = f"{choice['name']} ({choice['sampler']}{grid}, w = {choice['guidance']:g})"
            own = [row for row in rows if (row["model"], row["name"]) == (model, choice["name"])]
            for index, row in enumerate(sorted(own, key=lambda row: row["evaluations"])):
                lines.append(f"| {title if index == 0 else ''} | {cells(row)} |")
        lines.append("")
    found = result["time_to_quality"]
    lines += [
        "## Time to the best quality of flow matching with Euler steps",
        "",
        f"Flow matching by Algorithm 2, which is Euler's method, satisfies {found['bar']:.3f} at best, in "
        f"{found['euler']:.1f} ms per image.",
        "The cheapest setting of each row that satisfies as many:",
        "",
        "| model, sampler | backbone | captions satisfied | ms per image | times less |",
        "|---|---|---|---|---|",
        *(f"| {name} | {' | '.join(map(str, short.values()))} |" for name, short in found["cheapest"].items()),
    ]
    return "\n".join(lines) + "\n"


def in_parallel(jobs: list[tuple[Any, ...]], processes: int) -> Iterator[Row]:
    """The results of (function, *arguments), as they come."""
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for ready in as_completed([pool.submit(*job) for job in jobs]):
            yield ready.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names or folders")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--evaluations", type=int, nargs="+", default=list(EVALUATIONS))
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--validation", type=int, default=250)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="of the timing; 0 leaves it out")
    parser.add_argument("--out", type=Path, default=Path("docs/results/samplers.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: Row = json.loads(args.out.read_text()) if args.out.exists() else {"chosen": [], "rows": []}
    result["command"] = shlex.join(["python", "benchmarks/samplers.py", *sys.argv[1:]])
    weights, order = {model: digest(model) for model in args.models}, [Path(model).name for model in args.models]

    def save(key: str, new: Iterator[Row]) -> None:
        for row in new:
            result[key].append(row)
            print(
                {name: row[name] for name in row if name not in ("tried", "sampling", "skills", "weights")}, flush=True
            )
            result[key].sort(key=lambda row: (order.index(row["model"]), list(SAMPLERS).index(row["name"])))
            args.out.write_text(json.dumps(result, indent=1) + "\n")

    for key in ("chosen", "rows"):
        result[key] = [row for row in result[key] if row["weights"] in weights.values()]
    known = {(row["weights"], row["name"]) for row in result["chosen"]}
    jobs = [(choose, model, name, args.validation) for model, name in product(args.models, args.samplers)]
    save("chosen", in_parallel([job for job in jobs if (weights[job[1]], job[2]) not in known], args.processes))
    done = {(row["weights"], row["name"], row["evaluations"], row["prompts"]) for row in result["rows"]}
    by_name = {name: model for model, name in zip(args.models, order, strict=True)}
    tests = [
        (measure, by_name[choice["model"]], choice, count, args.prompts)
        for count, choice in product(sorted(args.evaluations), result["chosen"])
        if (choice["weights"], choice["name"], count, args.prompts) not in done
    ]
    save("rows", in_parallel(tests, args.processes))
    if args.repeats:
        timed(args.models, result["rows"], args.repeats)
        result["time_to_quality"] = time_to_quality(result["rows"])
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
