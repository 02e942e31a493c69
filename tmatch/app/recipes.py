"""`tmatch recipes`."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tmatch.app.tables import read_table

GROUP_TITLES = {
    "shapes": "shapes: synthetic images, on a CPU, with weights for some of them (`tmatch models`)",
    "folder": "folder: your own images, small enough for memory",
    "shards": "shards: data encoded by `tmatch prepare`, about 5M parameters",
    "sizes": "sizes: shards on one GPU or a few, S to XL",
    "paper": "paper: the paper's 1.7B models, on shards",
}


def main(arguments: Sequence[str]) -> None:
    """Print the recipes, by group."""
    parser = ArgumentParser(prog="tmatch recipes", description="List the recipes.", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    rows = read_table("recipes")
    if parser.parse_args(arguments).json:
        print(json.dumps(rows, indent=2))
        return
    console, order = Console(), list(GROUP_TITLES)
    for group, members in groupby(sorted(rows, key=lambda row: order.index(row["group"])), lambda row: row["group"]):
        table = Table(
            "recipe", "description", title=Text(GROUP_TITLES[group]), title_justify="left", title_style="bold"
        )
        table.columns[0].no_wrap = True
        for row in members:
            table.add_row(row["recipe"], Text(row["description"]))
        console.print(table)
    console.print("Train one with: tmatch train RECIPE --out DIR", highlight=False)
