"""The `tmatch` command."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from tmatch import __version__
from tmatch.recipes import RECIPES, AutoencoderRecipe
from tmatch.variants import VARIANTS

if TYPE_CHECKING:
    Recipe = AutoencoderRecipe
else:  # a subcommand for each recipe, with its settings as defaults
    Recipe = tyro.extras.subcommand_type_from_defaults({name: recipe() for name, recipe in RECIPES.items()})


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


def train(
    recipe: Recipe,
    out: Path,
) -> None:
    """Train a recipe, or go on where the same command stopped.

    Args:
        recipe: what to train; every setting of it can be overridden.
        out: the folder of the run: checkpoints, losses, the configuration, and what it exports.
    """
    result = recipe.run(out, progress=sys.stderr.isatty())
    print("Saved; the same command goes on." if result is None else json.dumps(result))


def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run a command."""
    commands: dict[str, Callable[..., None]] = {"variants": variants, "train": train, "version": version}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="tmatch",
            description="Transition Matching: train and sample.",
            config=(tyro.conf.CascadeSubcommandArgs, tyro.conf.OmitSubcommandPrefixes),
        )
    except (ValueError, OSError) as error:
        sys.exit(_sentence(error))


def _sentence(error: Exception) -> int:
    """Say what is wrong; the exit code of a command that was called wrongly."""
    text = str(error)
    if isinstance(error, ValidationError):
        text = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}" for e in error.errors())
    print(f"tmatch: {text}", file=sys.stderr)
    return 2
