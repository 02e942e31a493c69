"""The `tmatch` command."""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from difflib import get_close_matches
from functools import partial, wraps
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from rich.console import Console
from rich.table import Table

from tmatch import __version__
from tmatch.app.draw import evaluate, generate
from tmatch.app.export import export
from tmatch.app.overrides import as_file, with_file
from tmatch.app.plan import Hardware, planned
from tmatch.app.prepare import prepare
from tmatch.plan.report import record, render
from tmatch.ranks import rank_and_world_size
from tmatch.recipes import RECIPES
from tmatch.runs.base import AssumedData
from tmatch.train.interrupt import preempted
from tmatch.train.resume import require_resumable
from tmatch.variants import VARIANTS

INTERRUPTED = 130
ROOMS = {
    "TrainConfig": "train.", "BackboneSettings": "backbone.", "HeadSettings": "head.", "TextSettings": "text.",
    "SamplingSettings": "sampling.", "StartSettings": "init.", "ShapesData": "data.", "FolderData": "data.",
}  # fmt: skip
"""Where the settings of each class stand in a recipe."""


def rows() -> list[dict[str, str]]:
    """The table of variants, in words."""
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


def variants(*, json_output: Annotated[bool, tyro.conf.arg(name="json")] = False) -> None:
    """List the methods: process x parametrization x kernel x times.

    Args:
        json_output: print JSON instead of a table.
    """
    if json_output:
        print(json.dumps(rows(), indent=2))
        return
    table = Table(*rows()[0])
    table.columns[0].no_wrap = True
    for row in rows():
        table.add_row(*row.values())
    Console().print(table)


def _recipes(arguments: Sequence[str]) -> Any:  # noqa: ANN401
    """The type of an option: a recipe with every setting, by default its own or those of the `--config` file."""
    defaults = {name: recipe() for name, recipe in RECIPES.items()}
    config, name = _config(arguments), _recipe(arguments)
    if config is not None and name in defaults:
        defaults[name] = with_file(defaults[name], config)
    about = {name: recipe.__doc__ or "" for name, recipe in RECIPES.items()}
    return tyro.extras.subcommand_type_from_defaults(defaults, descriptions=about)


def _train(recipes: Any) -> Callable[..., None]:  # noqa: ANN401
    """The command that trains."""

    def train(recipe: recipes, out: Path, config: Path | None = None, dry_run: bool = False) -> None:
        """Train a recipe, or go on where the same command stopped.

        Args:
            recipe: what to train; every setting of it can be overridden.
            out: the folder of the run: checkpoints, losses, images, the configuration, and the finished weights.
            config: a YAML file of settings; options given here override it.
            dry_run: print all settings, as `--config` takes them, and train nothing; refuse what a run would refuse of
                them, of the data and of the folder.
        """
        if dry_run:
            print(as_file(recipe), end="", flush=True)
            recipe.train.parts()
            require_resumable(out, recipe)
            recipe.preflight(out)
            return
        require_resumable(out, recipe)  # before the data is prepared
        result = recipe.run(out, progress=True)
        if result is None:
            if rank_and_world_size()[0] == 0:
                print("tmatch: interrupted and saved; the same command goes on.", file=sys.stderr)
            sys.exit(0 if preempted() else INTERRUPTED)
        if result:  # of several processes the first has something to say
            print(json.dumps(result, indent=2))
            print(f"tmatch: finished; the weights are in {out}", file=sys.stderr)

    return train


def _plan(recipes: Any) -> Callable[..., None]:  # noqa: ANN401
    """The command that plans."""

    def plan(
        recipe: recipes,
        hardware: Annotated[Hardware, tyro.conf.arg(name="")] = Hardware(),
        expected: AssumedData = AssumedData(),
        config: Path | None = None,
        json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
    ) -> None:
        """Say what a recipe would take: parameters, FLOPs, memory, days, and seconds an image. Nothing is allocated.

        Args:
            recipe: what to plan; every setting of it can be overridden.
            hardware: what it would run on.
            expected: data that is not there yet; where a recipe's is, that counts.
            config: a YAML file of settings; options given here override it.
            json_output: print JSON instead of tables.
        """
        found = planned(recipe, hardware, expected)
        print(json.dumps(record(found), indent=2) if json_output else render(found), end="\n" if json_output else "")

    return plan


def _config(arguments: Sequence[str]) -> Path | None:
    """The value of `--config`, wherever it stands; the last one where there are several."""
    found = None
    for argument, following in pairwise([*arguments, ""]):
        if argument == "--config" and following and not following.startswith("-"):
            found = Path(following)
        if argument.startswith("--config="):
            found = Path(argument.removeprefix("--config="))
    return found


def _recipe(arguments: Sequence[str]) -> str:
    """The recipe, wherever it stands; one that is not there is refused, with the one that was meant."""
    named = [word for before, word in pairwise(arguments) if word in RECIPES and before not in ("--out", "--config")]
    first = "".join(arguments[1:2])
    if arguments[:1] in (["train"], ["plan"]) and first and not named and not first.startswith("-"):
        raise ValueError(f"There is no recipe '{first}'{_meant(first, RECIPES)}; the recipes are {', '.join(RECIPES)}.")
    return named[0] if named else ""


def _meant(word: str, words: Iterable[str]) -> str:
    """The nearest of some words, as a question."""
    nearest = get_close_matches(word, list(words), n=1)
    return f" (did you mean '{nearest[0]}'?)" if nearest else ""


def version() -> None:
    """Print the version."""
    print(__version__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        _parsed(arguments)()
    except BrokenPipeError:  # what we print to has closed, as `head` does
        os._exit(0)  # no other way keeps Python from complaining of it once more
    except (ValueError, OSError) as error:
        sys.exit(_sentence(error))
    except KeyboardInterrupt:
        then = "goes on" if arguments[0] == "prepare" else "starts again"
        print(f"tmatch: interrupted; nothing saved is lost, and the same command {then}.", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _parsed(arguments: Sequence[str]) -> Callable[[], None]:
    """The command that was asked for, with its arguments, ready to run."""
    arguments = list(arguments)
    commands: dict[str, Callable[..., None]] = {
        "generate": generate, "evaluate": evaluate, "train": _train(recipes := _recipes(arguments)), "prepare": prepare,
        "plan": _plan(recipes), "export": export, "variants": variants, "version": version,
    }  # fmt: skip
    if arguments[0] not in commands and not arguments[0].startswith("-"):
        hint = f"{_meant(arguments[0], commands)}; the commands are {', '.join(commands)}."
        raise ValueError(f"There is no command '{arguments[0]}'{hint}")
    said = StringIO()
    try:
        with redirect_stderr(said):
            parsed: Callable[[], None] = tyro.extras.subcommand_cli_from_dict(
                {name: _later(command) for name, command in commands.items()},
                args=arguments,
                prog="tmatch",
                description="Transition Matching: train, generate, evaluate.",
                config=(tyro.conf.CascadeSubcommandArgs, tyro.conf.OmitSubcommandPrefixes, tyro.conf.AvoidSubcommands),
            )
    except SystemExit as exit:
        failed = exit.__context__
        reason = failed and failed.__context__
        # A setting out of its range: a sentence says it better. What is no number at all tyro says with the option.
        if isinstance(reason, ValueError) and isinstance(getattr(failed, "arg", None), str):
            raise reason from None
        print(said.getvalue(), end="", file=sys.stderr)
        raise
    return parsed


def _later(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """A command that can be parsed now and run later."""

    @wraps(command)
    def bound(*arguments: Any, **options: Any) -> Callable[[], None]:  # noqa: ANN401
        return partial(command, *arguments, **options)

    return bound


def _setting(error: ValidationError, detail: ErrorDetails) -> str:
    """The name of a setting, as it is written."""
    return (ROOMS.get(error.title, "") + ".".join(map(str, detail["loc"]))).rstrip(".")


def _reason(error: ErrorDetails) -> str:
    """What pydantic says of one setting; our own sentences as they are."""
    own = error.get("ctx", {}).get("error")
    return str(own) if own else f"{error['msg']}, got {error['input']!r}"


def _sentence(error: Exception) -> int:
    """Say what is wrong; the exit code of a command that was called wrongly."""
    text = str(error)
    if isinstance(error, ValidationError):
        text = "; ".join(": ".join(filter(None, (_setting(error, e), _reason(e)))) for e in error.errors())
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        text = "There is no space left on the disk; make room, and the same command goes on."
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename} cannot be used: {error.strerror}; mend that, or give another place."
    print(f"tmatch: {text}", file=sys.stderr)
    return 2
