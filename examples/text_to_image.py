"""Generate images with flow matching and DTM side by side, with the presets of the models that ship with the package.

    python examples/text_to_image.py --out out/demo.png

Checks every image against its prompt and prints the network evaluations. Takes a few seconds.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tmatch.eval.shapes import check
from tmatch.runs import load_model

PROMPTS = (
    "a triangle",
    "a yellow cross",
    "three squares",
    "four circles",
    "a circle and a square",
    "a cross above a triangle",
    "a square left of a triangle",
    "a red circle and a blue square",
    "a green cross and a purple triangle",
)
ROWS = [(model, preset) for model in ("shapes-fm", "shapes-dtm-from-fm") for preset in ("fast", "balanced")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo.png"), help="file to write")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + len(PROMPTS))
    figure, axes = plt.subplots(len(ROWS), len(PROMPTS), figsize=(1.5 * len(PROMPTS), 1.75 * len(ROWS)))
    for row, (name, preset) in zip(axes, ROWS, strict=True):
        model = load_model(name)
        result = model.pipeline.generate(PROMPTS, seeds, model.sampling(preset))
        right = check(result.images, PROMPTS).tolist()
        cost = result.evaluations
        print(
            f"{name}, {preset}: {sum(right)} of {len(right)} ok, {cost.backbone} backbone and {cost.head} head "
            f"evaluations per image, {result.seconds:.2f} s in total"
        )
        for ax, prompt, image, ok in zip(row, PROMPTS, result.images, right, strict=True):
            print(f"  {'ok                  ' if ok else 'prompt not satisfied'}  {prompt}")
            ax.imshow(image.movedim(0, -1))
            ax.set(xticks=[], yticks=[])
            ax.set_title(prompt.replace(" and ", "\nand ").replace(" of ", "\nof "), fontsize=6)
            for side in ax.spines.values():
                side.set(color="tab:green" if ok else "tab:red", linewidth=2)
        row[0].set_ylabel(f"{name.removeprefix('shapes-')}\n{preset}", fontsize=8)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(args.out, dpi=110)
    print(f"\nImage: {args.out} (green: ok, red: prompt not satisfied)\n")
    print("Next, in this environment (source .venv/bin/activate):")
    print("  tmatch generate 'a red circle and a blue square' --images 9 --out circles.png")
    print("  tmatch evaluate --prompts 200                       # how often it follows the prompt")
    print("  tmatch train shapes-dtm-from-fm --out runs/shapes   # train it yourself; rerun to resume")


if __name__ == "__main__":
    main()
