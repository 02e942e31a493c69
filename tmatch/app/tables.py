"""`tables.json`: the tables of `tmatch variants`, `recipes` and `models`, which are printed without importing torch.

`make tables` writes the file from the code.
"""

import json
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

FILE = Path(__file__).with_name("tables.json")
TableRow = dict[str, str]


def print_table(
    name: str,
    columns: Mapping[str, int | None],
    note: str,
    as_json: bool,
    title: Callable[[TableRow], str] = lambda _: "",
) -> None:
    """Print some columns, given with their widths, of a table: below the title of each group of rows, or as JSON."""
    rows: list[TableRow] = json.loads(FILE.read_text(encoding="utf-8"))[name]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    console = Console(highlight=False)
    for heading, members in groupby(rows, title):
        header = (Column(column, width=width) for column, width in columns.items())
        table = Table(*header, box=None, padding=(0, 1, 0, 0))
        for row in members:
            table.add_row(*(Text(row[column]) for column in columns))
        console.print(*([Text(heading, style="bold")] if heading else []), table, Text(), sep="\n")
    console.print(note)


def build_tables() -> dict[str, list[TableRow]]:
    """All tables, from the code."""
    from tmatch.recipes import GROUPS, RECIPES
    from tmatch.runs.load import MODELS

    about = {name: (recipe.__doc__ or "").splitlines()[0] for name, recipe in RECIPES.items()}
    groups = [(group, name) for group, members in GROUPS.items() for name in members]
    return {
        "variants": variant_rows(),
        "recipes": [{"recipe": name, "group": group, "description": about[name]} for group, name in groups],
        "models": [{"model": name, "description": about.get(name, "")} for name in MODELS],
    }


def variant_rows() -> list[TableRow]:
    """The table of variants, in words."""
    from tmatch.variants import VARIANTS

    return [
        {
            "variant": name,
            "process": str(row.process),
            "Y": row.parametrization.symbol,
            "kernel": row.given,
            "attention": row.attention,
            "backbone": "DiT" if row.timed else "DiT, Llama",
            "times": str(row.times),
            "evaluations": row.evaluations,
        }
        for name, row in VARIANTS.items()
    ]


if __name__ == "__main__":
    FILE.write_text(json.dumps(build_tables(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
