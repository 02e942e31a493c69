"""`tmatch variants`, `recipes`, `models`: print `tables.json`, which `make tables` writes, without importing torch."""

import json
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

FILE = Path(__file__).with_name("tables.json")
GROUP_TITLES = {
    "shapes": "shapes: synthetic images, on a CPU; `tmatch models` lists those with weights",
    "small": "small: Fashion-MNIST and CIFAR-10 by class, in minutes on a CPU",
    "folder": "folder: your own images, small enough for memory",
    "shards": "shards: data encoded by `tmatch prepare`, about 5M parameters; with a language model, 100M",
    "sizes": "sizes: shards on one GPU or a few, S to XL",
    "paper": "paper: the paper's 1.7B models, on shards",
    "imagenet": "imagenet: class-conditional shards of ImageNet, at published settings of DiT, SiT and MAR",
}
KERNEL = "Kernel: {kernel}\nAttention: {attention}. Backbone: {backbone}. NFE: {evaluations}."
JsonFlag = Annotated[bool, tyro.conf.arg(name="json", help="print JSON instead of tables.")]
TableRow = dict[str, str]


def variants(as_json: JsonFlag = False) -> None:
    """List the methods: process x parametrization x kernel x times."""
    widths = {"variant": 16, "process": 24, "Y": 9, "times": 24}
    note = "NFE: backbone evaluations per image, for T transitions of n tokens or K unmasking iterations."
    _print_table("variants", as_json, widths, note, KERNEL.format_map)


def recipes(as_json: JsonFlag = False) -> None:
    """List the recipes that `tmatch train` trains."""
    note = "Train one with: tmatch train RECIPE --out DIR"
    _print_table("recipes", as_json, {"recipe": 25, "description": None}, note, lambda row: GROUP_TITLES[row["group"]])


def models(as_json: JsonFlag = False) -> None:
    """List the trained models that come with the package."""
    note = "Use one with: tmatch generate 'a red circle' --model MODEL"
    _print_table("models", as_json, {"model": 20, "description": None}, note, lambda _: "")


def _print_table(
    name: str, as_json: bool, widths: Mapping[str, int | None], note: str, title: Callable[[TableRow], str]
) -> None:
    """Print a table as JSON, or its columns in `widths` below the title of each group of rows."""
    rows: list[TableRow] = json.loads(FILE.read_text(encoding="utf-8"))[name]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    console = Console(highlight=False)
    for heading, members in groupby(rows, title):
        table = Table(*(Column(name, width=width) for name, width in widths.items()), box=None, padding=(0, 1, 0, 0))
        for row in members:
            table.add_row(*(Text(row[column]) for column in widths))
        console.print(*([Text(heading, style="bold")] if heading else []), table, Text(), sep="\n")
    console.print(note)


def build_tables() -> dict[str, list[TableRow]]:
    """All tables, from the code."""
    from tmatch.recipes import GROUPS, RECIPES
    from tmatch.runs.load import MODELS
    from tmatch.variants import VARIANTS

    about = {name: (recipe.__doc__ or "").splitlines()[0] for name, recipe in RECIPES.items()}
    methods = [
        {
            "variant": name, "process": str(row.process), "Y": row.parametrization.symbol, "kernel": row.given,
            "attention": row.attention, "backbone": "DiT" if row.timed else "DiT, Llama", "times": str(row.times),
            "evaluations": row.evaluations,
        }
        for name, row in VARIANTS.items()
    ]  # fmt: skip
    groups = [(group, name) for group, members in GROUPS.items() for name in members]
    return {
        "variants": methods,
        "recipes": [{"recipe": name, "group": group, "description": about[name]} for group, name in groups],
        "models": [{"model": name, "description": about.get(name, "")} for name in MODELS],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(build_tables(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
