"""`tmatch models`."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tmatch.app.tables import read_table


def main(arguments: Sequence[str]) -> None:
    """Print the models that come with the package."""
    parser = ArgumentParser(prog="tmatch models", description="List the trained models.", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    rows = read_table("models")
    if parser.parse_args(arguments).json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("model", "description")
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(row["model"], Text(row["description"]))
    console = Console()
    console.print(table)
    console.print("Use one with: tmatch generate 'a red circle' --model MODEL", highlight=False)
