"""The `tmatch` command."""

import json
import sys
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tmatch import __version__
from tmatch.variants import VARIANTS, Variant


def _row(name: str, row: Variant) -> dict[str, str]:
    return {
        "variant": name,
        "process": str(row.process),
        "Y": row.parametrization.symbol,
        "kernel": row.given,
        "times": str(row.times),
    }


def variants(*, json_output: Annotated[bool, tyro.conf.arg(name="json")] = False) -> None:
    """List the methods: process x parametrization x kernel x times.

    Args:
        json_output: print JSON instead of a table.
    """
    rows = [_row(name, row) for name, row in VARIANTS.items()]
    if json_output:
        json.dump(rows, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run a command."""
    commands = {"variants": variants, "version": version}
    tyro.extras.subcommand_cli_from_dict(commands, prog="tmatch", description="Transition Matching: train and sample.")
