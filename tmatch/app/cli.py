"""The `tmatch` command: finds the command by name, runs it, and turns errors into one sentence and an exit code."""

import errno
import os
import re
import sys
from argparse import REMAINDER, SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module

from pydantic import ValidationError

from tmatch import __version__
from tmatch.app.parse import INTERRUPTED, call
from tmatch.app.streams import standard_streams
from tmatch.config import did_you_mean, printable

COMMANDS = {
    "generate": ("generate.main", "generate images from prompts or classes"),
    "evaluate": ("evaluate.main", "measure how many captions a model satisfies"),
    "tune": ("tune.main", "choose a model's presets of sampling settings: fast, balanced, best"),
    "train": ("train.main", "train a recipe, or resume its run"),
    "data": ("data.main", "convert a data set from its package: fashion-mnist, cifar-10"),
    "prepare": ("prepare.main", "encode images, with captions or labels, into shards to train on"),
    "plan": ("plan.main", "estimate parameters, memory, FLOPs and time of a recipe on GPUs"),
    "export": ("export.main", "write a model to one folder, and optionally push it to the Hub"),
    "variants": ("tables.variants", "list the methods: process x parametrization x kernel x times"),
    "recipes": ("tables.recipes", "list what `tmatch train` can train"),
    "models": ("tables.models", "list the trained models that come with the package"),
}
"""Each command is a function, imported when it is called; its parameters are the options."""
TOO_LARGE = "(?i)allocate memory|out of memory|bad_alloc|overflow|new thread|a primitive"  # PyTorch's errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; it completes even if nobody reads its output, as with `| head`."""
    with standard_streams() as stdout:
        try:
            _main(arguments)
        finally:
            stdout.flush()
            if stdout.error is not None and not isinstance(stdout.error, BrokenPipeError):
                print(f"tmatch: Standard output cannot be written: {stdout.error.strerror}.", file=sys.stderr)
                sys.exit(2)


def _main(arguments: Sequence[str] | None) -> None:
    listing = "\n".join(f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items())
    parser = ArgumentParser(
        prog="tmatch", usage="tmatch COMMAND [options]", allow_abbrev=False,
        formatter_class=RawDescriptionHelpFormatter,
        description=f"Transition Matching in PyTorch: train, generate, evaluate.\n\ncommands:\n{listing}",
        epilog="`tmatch COMMAND --help` lists the options of a command.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"tmatch {__version__}", help="print the version")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=SUPPRESS)
    parser.add_argument("arguments", nargs=REMAINDER, help=SUPPRESS)
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return
    if given.command not in COMMANDS:
        parser.error(f"there is no command '{printable(given.command)}'{did_you_mean(given.command, COMMANDS)}")
    module, function = COMMANDS[given.command][0].split(".")
    try:
        os.getcwd()  # or MKL would abort
        call(given.command, getattr(import_module(f"tmatch.app.{module}"), function), given.arguments)
    except KeyboardInterrupt:
        resumes = given.command in ("train", "prepare", "generate", "tune")
        hint = "; rerun the same command to complete it" if resumes else ""
        print(f"tmatch: interrupted{hint}.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if (sentence := message(error)) is None:
            raise
        print(f"tmatch: {printable(sentence)}", file=sys.stderr)
        sys.exit(2)


def _location(parts: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where a setting is, without the tag of a union: pydantic inserts the kind of a data set."""
    return (parts[0], *parts[2:]) if len(parts) > 2 and parts[0] == "data" else parts


def message(error: Exception) -> str | None:
    """An error in one sentence, an invalid value with its option; None for a bug."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"--{option}: {reason}" if option else reason
            for detail in error.errors()
            for option in [".".join(map(str, _location(detail["loc"]))).replace("_", "-")]
            for reason in [str(detail.get("ctx", {}).get("error") or f"{detail['msg']}, got {detail['input']!r}.")]
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "There is no space left on the disk; free some, then rerun the same command to resume."
    if isinstance(error, FileNotFoundError) and error.errno is not None and error.filename is None:
        return "The working folder no longer exists; change to another folder."
    if isinstance(error, OSError) and error.filename is not None:
        return f"Cannot use {error.filename}: {error.strerror}."
    if isinstance(error, (ValueError, OSError)):
        return str(error)
    if isinstance(error, (MemoryError, OverflowError)) or re.search(TOO_LARGE, str(error)):
        return "This does not fit into memory; lower the batch size, the size of the images or the size of the network."
    return None
