"""Head steps that fall over the tokens, against constant numbers: quality and images per second.

    python benchmarks/head_schedule.py runs/fhtm-3 runs/mar [--prompts 1000] [--out docs/results/head_schedule.json]

Models are folders of runs, such as those of the recipes shapes-fhtm-3 and shapes-mar. Constant numbers of head steps
and schedules are measured on test prompts with fresh seeds, and all settings of a model are timed in turns. A setting
is as good as 16 constant steps if it satisfies no fewer captions than the 95% interval of those, and its energy
distance is at most .005 above. Settings that the result file already has for the same weights are skipped.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from samplers import FRESH, METRICS, digest

from tmatch.datasets import shapes_split
from tmatch.eval.evaluate import evaluate
from tmatch.generation.config import SamplingConfig
from tmatch.runs import load_model

SETTINGS: tuple[tuple[int, int | None], ...] = (
    (16, None), (8, None), (4, None), (2, None), (1, None), (16, 4), (16, 1), (8, 2), (8, 1), (4, 1),
)  # fmt: skip
"""(head steps, last head steps); the first is the one to compare with."""
ENERGY = 0.005
Row = dict[str, Any]


def sampling(model: str, first: int, last: int | None) -> SamplingConfig:
    own = load_model(model).config.run.sampling
    return own.updated(head_steps=first, last_head_steps=last)


def measure(model: str, first: int, last: int | None, prompts: int) -> Row:
    images, loaded, config = shapes_split(prompts, "test"), load_model(model), sampling(model, first, last)
    reference = loaded.config.run.data.eval_reference("test")
    found = evaluate(loaded.pipeline, images.captions, reference, METRICS, config, first_seed=FRESH)
    name = {"model": Path(model).name, "weights": digest(model), "head_steps": first, "last_head_steps": last}
    return {**name, **found}


def timed(models: list[str], rows: list[Row], repeats: int, images: int = 32) -> None:
    """Write the median images per second of every row, with all rows in turns."""
    loaded = {Path(model).name: (model, load_model(model).pipeline) for model in models}
    prompts = shapes_split(images, "validation").captions
    seconds: list[list[float]] = [[] for _ in rows]
    for _ in range(repeats):
        for row, found in zip(rows, seconds, strict=True):
            model, pipeline = loaded[row["model"]]
            config = sampling(model, row["head_steps"], row["last_head_steps"])
            found.append(pipeline.generate(prompts, range(images), config).seconds)
    for row, found in zip(rows, seconds, strict=True):
        row["images_per_second"] = round(images / statistics.median(found), 2)


def summary(rows: list[Row]) -> list[Row]:
    """Of each model: the fastest schedule and the fastest constant number that are as good as the first setting."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        bar = next(row for row in own if (row["head_steps"], row["last_head_steps"]) == SETTINGS[0])
        enough = [
            row for row in own
            if row["captions_satisfied"] >= bar["interval_95"][0]
            and row["energy_distance"] <= bar["energy_distance"] + ENERGY
        ]  # fmt: skip
        fastest: Row = {"model": model}
        for kind, constant in (("constant", True), ("schedule", False)):
            kept = [row for row in enough if (row["last_head_steps"] is None) == constant]
            if kept:
                best = max(kept, key=lambda row: row["images_per_second"])
                fastest[kind] = {key: best[key] for key in ("head_steps", "last_head_steps", "captions_satisfied")}
                fastest[kind]["times_faster"] = round(best["images_per_second"] / bar["images_per_second"], 2)
        found.append(fastest)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders of runs")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5, help="of the timing; 0 leaves it out")
    parser.add_argument("--out", type=Path, default=Path("docs/results/head_schedule.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: Row = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    weights = {model: digest(model) for model in args.models}
    rows = result["rows"] = [row for row in result["rows"] if row["weights"] in weights.values()]
    done = {(row["weights"], row["head_steps"], row["last_head_steps"], row["prompts"]) for row in rows}
    for first, last in SETTINGS:
        for model in args.models:
            if (weights[model], first, last, args.prompts) not in done:
                rows.append(measure(model, first, last, args.prompts))
                print({key: value for key, value in rows[-1].items() if key not in ("skills", "weights")}, flush=True)
                args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.repeats:
        timed(args.models, rows, args.repeats)
        result["fastest"] = summary(rows)
        print(json.dumps(result["fastest"], indent=2))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
