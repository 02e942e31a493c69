"""Parsing: options for a function through tyro, and the recipe that `train` and `plan` start from."""

import os
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from tmatch.config import Config, did_you_mean


def call(command: str, function: Callable[..., None], arguments: Sequence[str], **defaults: Config) -> None:
    """Parse arguments by a function's signature and docstring, then call it: its own errors are not parsing errors.

    A parameter with one of the `defaults` takes a configuration of that type, whose fields are the options.
    """
    import tyro

    os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # one clear message for an invalid value, without a link

    @wraps(function)
    def bound(*given: Any, **options: Any) -> Callable[[], None]:  # noqa: ANN401
        return partial(function, *given, **options)

    for name, default in defaults.items():
        bound.__annotations__[name] = Annotated[type(default), tyro.conf.arg(name="")]
    bound.__signature__ = signature(partial(function, **defaults))  # type: ignore[attr-defined]
    tyro.cli(bound, args=arguments, prog=f"tmatch {command}", config=(tyro.conf.AvoidSubcommands,))()


def call_with_recipe(command: str, function: Callable[..., None], arguments: Sequence[str]) -> None:
    """As `call`; the first argument names the recipe, whose settings are the defaults of the parameter `recipe`.

    A file given as `--config` overrides the recipe, and options override the file.
    """
    from tmatch.app.overrides import with_data, with_file

    description = (function.__doc__ or "").splitlines()[0]
    parser = ArgumentParser(
        prog=f"tmatch {command}", usage=f"tmatch {command} RECIPE [options]", description=description, add_help=False,
        allow_abbrev=False, epilog=f"`tmatch recipes` lists the recipes, `tmatch {command} RECIPE --help` the options.",
    )  # fmt: skip
    parser.add_argument("--config", type=Path, help="YAML file of settings that override the recipe's")
    parser.add_argument("--data.kind", dest="kind", help="data set to train on instead of the recipe's")
    known, rest = parser.parse_known_args(arguments)
    if rest[:1] in (["--help"], ["-h"]):
        parser.print_help()
        return
    if not rest or rest[0].startswith("-"):
        parser.error("name a recipe first; `tmatch recipes` lists them")
    settings = _recipe(rest[0])
    config = [] if known.config is None else ["--config", str(known.config)]
    if known.kind is not None:
        settings = with_data(settings, known.kind)
    if known.config is not None:
        settings = with_file(settings, known.config)
    call(f"{command} {rest[0]}", function, [*rest[1:], *config], recipe=settings)


def _recipe(name: str) -> Config:
    """The settings of a recipe; no other recipe is built."""
    from tmatch.recipes import RECIPES

    if name not in RECIPES:
        raise ValueError(f"There is no recipe '{name}'{did_you_mean(name, RECIPES)}; `tmatch recipes` lists them.")
    return RECIPES[name]()
