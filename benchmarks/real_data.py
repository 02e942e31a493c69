"""Emoji and photographs from files to generated images: prepare, train FM and DTM, generate.

    python benchmarks/real_data.py --emoji fluent_emoji_3d_64.zip [--photos flickr8k_64.zip]
        --autoencoder taesdxl --text all-MiniLM-L6-v2 [--steps 1600 1250] [--withheld 200] [--runs runs/real]

Every part is a `tmatch` command, printed before it runs; unfinished runs resume. FM and DTM train at the same time on
one core each, for numbers of steps that take about the same time. There is one emoji per name, so no judge is needed: a
prompt is followed if the generated image is nearest to its own emoji among all emoji as the autoencoder reconstructs
them. `--withheld` emoji, which are not trained on, show how much of that is recall.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from tmatch.data.images import grid, save_image
from tmatch.data.shards import ShardSet
from tmatch.runs import load_model

EMOJI = ["red apple", "pizza", "blue heart", "sun", "dog face", "alarm clock", "soccer ball", "cactus"]
PHOTOS = [
    "A black dog is running on the grass .", "A brown dog runs through the snow .", "A man is surfing a big wave .",
    "Two children are playing on the beach .", "A man climbs a rock face .", "A child in a red shirt on a swing .",
    "A dog swims in the water .", "People are standing in front of a building .",
]  # fmt: skip
MODELS = {"fm": "shards-fm", "dtm": "shards-dtm-mean"}
NAMES = 200
"""Number of names to evaluate."""
SHOWN = 12
"""Number of withheld emoji in the image."""


def tmatch(*words: str | Path) -> None:
    """Print a command and run it."""
    command = ["tmatch", *map(str, words)]
    print("$", shlex.join(command), flush=True)
    subprocess.run(
        [sys.executable, "-m", *command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=sys.stderr,
    )  # fmt: skip


def unpacked(images: zipfile.ZipFile, rows: list[tuple[str, list[str]]], folder: Path) -> Path:
    """A folder of images with captions, from rows of (name in the archive, captions)."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, captions in rows:
        file = Path(name).name
        (folder / file).write_bytes(images.read(name))
        lines.append(json.dumps({"file_name": file, "text": captions}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def emoji(archive: Path, folder: Path, withheld: int) -> dict[str, Path]:
    """One image per name, captioned by the name and by the name with keywords; evenly spaced ones are withheld."""
    with zipfile.ZipFile(archive) as images:
        rows = [json.loads(line) for line in images.read("meta.jsonl").decode().splitlines()]
        kept = [row for row in rows if row["tone"] in ("", "Default")]
        named = [
            (row["file"], [row["name"].lower(), ", ".join([row["name"].lower(), *row["keywords"][:3]])]) for row in kept
        ]
        apart = {k * len(named) // withheld for k in range(withheld)}
        parts = {
            "emoji": [row for k, row in enumerate(named) if k not in apart],
            "emoji-withheld": [row for k, row in enumerate(named) if k in apart],
        }
        return {name: unpacked(images, part, folder / name) for name, part in parts.items() if part}


def photos(archive: Path, folder: Path, split: str) -> Path:
    """Photographs of one split with their captions."""
    with zipfile.ZipFile(archive) as images:
        rows = [json.loads(line) for line in images.read("captions.jsonl").decode().splitlines()]
        return unpacked(
            images, [(f"img/{row['file']}", row["captions"]) for row in rows if row["split"] == split], folder
        )


def trained(name: str, shards: Path, out: Path, steps: int, *more: str | Path) -> dict[str, Any]:
    """Train a recipe on one core; seconds include earlier calls of the same run."""
    recipe, started, spent = MODELS[name], time.perf_counter(), out / "spent.json"
    before = json.loads(spent.read_text()) if spent.exists() else 0
    tmatch("train", recipe, "--data.folders", shards, "--train.steps", str(steps), "--out", out, *more)
    seconds = round(before + time.perf_counter() - started)
    spent.write_text(json.dumps(seconds))
    return {"recipe": recipe, "steps": steps, "seconds": seconds}


def emoji_of(shards: ShardSet, source: Path) -> tuple[list[str], Tensor]:
    """Names and latents of all emoji."""
    samples = [shards.read(number) for number in range(len(shards.manifest.shards))]
    lines = [json.loads(line) for line in (source / "metadata.jsonl").read_text().splitlines()]
    names = [lines[row]["text"][0] for part in samples for row in part.rows.tolist()]
    return names, torch.cat([part.latents for part in samples]).float()


def followed(model: Path, runs: Path, sources: dict[str, Path], guidance: float) -> dict[str, dict[str, float]]:
    """For each source, the fraction of names whose image is nearest to its own emoji, and the median rank.

    Ranks count from 1; chance is half the number of emoji.
    """
    loaded = load_model(str(model))
    pipeline, sampling = loaded.pipeline, loaded.config.run.sampling.updated(guidance=guidance)
    known = {name: emoji_of(ShardSet(runs / f"{name}-shards"), source) for name, source in sources.items()}
    latents = torch.cat([part for _, part in known.values()])
    rendered = _small(torch.cat([pipeline.codec.autoencoder.decode(part) for part in latents.split(128)]))
    result, first = {}, 0
    for source, (names, _) in known.items():
        chosen = torch.linspace(0, len(names) - 1, min(NAMES, len(names))).long()
        prompts = [names[k] for k in chosen.tolist()]
        distances = torch.cdist(_small(pipeline.generate(prompts, range(len(prompts)), sampling).images), rendered)
        places = 1 + (distances < distances.gather(1, first + chosen[:, None])).sum(1)
        result[source] = {
            "share": round((places == 1).float().mean().item(), 3),
            "median_place": places.median().item(),
        }
        first += len(names)
    return result


def _small(images: Tensor) -> Tensor:
    """Images as vectors, downsampled by 4 so that sharpness does not matter."""
    return avg_pool2d(images, 4).flatten(1)


def images(model: Path, prompts: list[str], guidance: float) -> Tensor:
    """Images that a model generates for prompts."""
    loaded = load_model(str(model))
    pipeline, sampling = loaded.pipeline, loaded.config.run.sampling.updated(guidance=guidance)
    return pipeline.generate(prompts, range(len(prompts)), sampling).images


def prepared(args: argparse.Namespace, name: str, source: Path) -> dict[str, int]:
    """Encode a folder of images into data shards."""
    out, started = args.runs / f"{name}-shards", time.perf_counter()
    tmatch(
        "prepare", source, "--autoencoder", args.autoencoder, "--text", args.text, "--size", str(args.size),
        "--max-length", "32", "--out", out,
    )  # fmt: skip
    manifest = ShardSet(out).manifest
    seconds = round(time.perf_counter() - started)
    return {"samples": manifest.samples, "skipped": manifest.skipped, "seconds": seconds}


def trained_all(
    runs: Path, name: str, models: Sequence[str], steps: Sequence[int], *more: str | Path
) -> dict[str, dict[str, Any]]:
    """Train models on the same shards at the same time."""
    with ThreadPoolExecutor() as pool:
        started = {
            key: pool.submit(trained, key, runs / f"{name}-shards", runs / f"{name}-{key}", count, *more)
            for key, count in zip(MODELS, steps, strict=True)
            if key in models
        }
    return {key: run.result() for key, run in started.items()}


def of_emoji(args: argparse.Namespace, sources: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Train on emoji, evaluate names, and write an image of trained or withheld names."""
    rows, drawn, prompts = trained_all(args.runs, "emoji", args.models, args.steps), [], EMOJI
    if apart := sources.get("emoji-withheld"):
        names, latents = emoji_of(ShardSet(args.runs / "emoji-withheld-shards"), apart)
        chosen = torch.linspace(0, len(names) - 1, SHOWN).long()
        prompts = [names[k] for k in chosen.tolist()]
    for key, row in rows.items():
        model = args.runs / f"emoji-{key}"
        measured = {w: followed(model, args.runs, sources, w) for w in args.guidance}
        row["followed"] = {str(w): each["emoji"]["share"] for w, each in measured.items()}
        if apart:
            row["withheld"] = {str(w): each["emoji-withheld"] for w, each in measured.items()}
            row["shown"] = prompts
        drawn.append(images(model, prompts, max(measured, key=lambda w: measured[w]["emoji"]["share"])))
    if apart:
        drawn.append(load_model(str(model)).pipeline.codec.autoencoder.decode(latents[chosen]))
    file = args.images / ("emoji_withheld.png" if apart else "emoji.png")
    save_image(grid(torch.cat(drawn), columns=len(prompts)), file, scale=2)
    return rows


def of_photos(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Train on photographs, and write validation losses and an image."""
    held_out = args.runs / "photos-held-out-shards"
    rows, drawn = trained_all(args.runs, "photos", args.models, args.photo_steps, "--data.validation", held_out), []
    for key, row in rows.items():
        model = args.runs / f"photos-{key}"
        if (file := model / "validation.jsonl").exists():  # a run shorter than the recipe's interval has none
            row["validation_loss"] = round(json.loads(file.read_text().splitlines()[-1])["ema"]["mean"], 4)
        drawn.append(images(model, PHOTOS, 3.0))
    save_image(grid(torch.cat(drawn), columns=len(PHOTOS)), args.images / "photos.png", scale=2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emoji", type=Path, required=True, help="zip file with meta.jsonl")
    parser.add_argument("--photos", type=Path, help="zip file with captions.jsonl; by default emoji only")
    parser.add_argument("--autoencoder", required=True, help="see `tmatch prepare`")
    parser.add_argument("--text", required=True, help="see `tmatch prepare`")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--steps", type=int, nargs=2, default=(1600, 1250), metavar=("FM", "DTM"), help="training steps on emoji"
    )
    parser.add_argument("--photo-steps", type=int, nargs=2, default=(800, 640), metavar=("FM", "DTM"))
    parser.add_argument(
        "--withheld", type=int, default=0, help="number of emoji that are not trained on, but evaluated"
    )
    parser.add_argument("--guidance", type=float, nargs="+", default=(1.5, 3.0, 5.0))
    parser.add_argument("--runs", type=Path, default=Path("runs/real"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/real_data.json"))
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    of_each = {"emoji": emoji(args.emoji, args.runs, args.withheld)}
    if args.photos is not None:
        splits = {"photos": "train", "photos-held-out": "dev"}
        of_each["photos"] = {name: photos(args.photos, args.runs / name, split) for name, split in splits.items()}
    result: dict[str, Any] = {"size": args.size}
    result["prepared"] = {
        name: prepared(args, name, source) for sources in of_each.values() for name, source in sources.items()
    }
    result["emoji"] = of_emoji(args, of_each["emoji"])
    if args.photos is not None:
        result["photos"] = of_photos(args)
    text = json.dumps(result, indent=2)
    print(text)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
