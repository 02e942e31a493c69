"""`tmatch variants`."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tmatch.app.tables import read_table

COLUMN_WIDTHS = {"variant": 16, "process": 24, "Y": 9, "times": 24}
"""Columns and their widths, which fit a terminal of 80 characters."""
NOTE = "NFE: backbone evaluations per image, for T transitions of n tokens or K unmasking iterations."


def main(arguments: Sequence[str]) -> None:
    """Print the table of methods."""
    parser = ArgumentParser(prog="tmatch variants", description="List the methods.", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    rows = read_table("variants")
    if parser.parse_args(arguments).json:
        print(json.dumps(rows, indent=2))
        return
    console = Console()
    for kernel, members in groupby(
        rows, lambda row: [row[key] for key in ("kernel", "attention", "backbone", "evaluations")]
    ):
        sentence, attention, backbone, evaluations = kernel
        console.print(
            Text(f"Kernel: {sentence}\nAttention: {attention}. Backbone: {backbone}. NFE: {evaluations}.", style="bold")
        )
        table = Table(*COLUMN_WIDTHS, box=None, padding=(0, 1, 0, 0))
        for column, width in zip(table.columns, COLUMN_WIDTHS.values(), strict=True):
            column.width = width
        for row in members:
            table.add_row(*(Text(row[column]) for column in COLUMN_WIDTHS))
        console.print(table)
        console.print()
    console.print(NOTE, highlight=False)
