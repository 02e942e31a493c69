"""The `tmatch` command."""

import json
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tmatch import __version__
from tmatch.variants import VARIANTS


def rows() -> list[dict[str, str]]:
    """The table of variants, in words."""
    return [
        {
            "variant": name,
            "process": str(row.process),
            "Y": row.parametrization.symbol,
            "kernel": row.given,
            "times": str(row.times),
        }
        for name, row in VARIANTS.items()
    ]


def variants(*, json_output: Annotated[bool, tyro.conf.arg(name="json")] = False) -> None:
    """List the methods: process x parametrization x kernel x times.

    Args:
        json_output: print JSON instead of a table.
    """
    if json_output:
        print(json.dumps(rows(), indent=2))
        return
    table = Table(*rows()[0])
    for row in rows():
        table.add_row(*row.values())
    Console().print(table)


def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run a command."""
    commands = {"variants": variants, "version": version}
    tyro.extras.subcommand_cli_from_dict(commands, prog="tmatch", description="Transition Matching: train and sample.")
