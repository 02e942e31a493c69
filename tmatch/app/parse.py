"""Parsing: options for a function through tyro, and the recipe that `train` and `plan` start from."""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tmatch.config import Config, did_you_mean, nonempty_path

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""


def call(command: str, function: Callable[..., None], arguments: Sequence[str], **defaults: Config) -> None:
    """Parse arguments by a function's signature and docstring, then call it: its own errors are not parsing errors.

    A parameter with one of the `defaults` takes a configuration of that type, whose fields are the options. The first
    argument chooses the default of a parameter `recipe`.
    """
    if "recipe" in signature(function).parameters and not defaults:
        return _call_with_recipe(command, function, arguments)
    import tyro

    @wraps(function)
    def bound(*given: Any, **options: Any) -> Callable[[], None]:  # noqa: ANN401
        return lambda: function(*given, **{name: _validated(value) for name, value in options.items()})

    flat = {name: Annotated[type(default), tyro.conf.arg(name="")] for name, default in defaults.items()}
    bound.__annotations__ = {**function.__annotations__, **flat}
    del bound.__wrapped__  # tyro would take its annotations
    bound.__signature__ = signature(partial(function, **defaults))  # type: ignore[attr-defined]
    with _unvalidated():
        run = tyro.cli(bound, args=arguments, prog=f"tmatch {command}", config=(tyro.conf.AvoidSubcommands,))
    run()


def _unvalidated() -> "ConstructorRegistry":
    """Has tyro build configurations without validation: validated later as a whole, their errors name the option."""
    from tyro import constructors

    registry, delegating = constructors.ConstructorRegistry(), [False]

    @registry.struct_rule
    def rule(info: constructors.StructTypeInfo) -> constructors.StructConstructorSpec | None:
        kind = info.type
        if delegating[0] or not (isinstance(kind, type) and issubclass(kind, Config)):
            return None
        delegating[0] = True
        spec = registry.get_struct_spec(info)
        delegating[0] = False

        def construct(**values: Any) -> Config:  # noqa: ANN401
            return kind.model_construct(**values)

        construct.__doc__ = kind.__doc__
        return replace(spec, instantiate=construct) if isinstance(spec, constructors.StructConstructorSpec) else None

    @registry.primitive_rule
    def path_rule(info: constructors.PrimitiveTypeInfo) -> constructors.PrimitiveConstructorSpec[Path] | None:
        return None if info.type is not Path else constructors.PrimitiveConstructorSpec(
            1, "PATH", lambda texts: nonempty_path(texts[0]), lambda x: isinstance(x, Path), lambda x: [str(x)]
        )  # fmt: skip

    return registry


def _validated(value: Any) -> Any:  # noqa: ANN401
    return type(value).model_validate(value.model_dump(warnings=False)) if isinstance(value, Config) else value


def _call_with_recipe(command: str, function: Callable[..., None], arguments: Sequence[str]) -> None:
    """As `call`; the first argument names the recipe, whose settings are the defaults of the parameter `recipe`.

    A file given as `--config` overrides the recipe, and options override the file.
    """
    from tmatch.app.overrides import with_data, with_file
    from tmatch.recipes import RECIPES

    parser = ArgumentParser(
        prog=f"tmatch {command}", usage=f"tmatch {command} RECIPE [options]", add_help=False, allow_abbrev=False,
        description=(function.__doc__ or "").splitlines()[0],
        epilog=f"`tmatch recipes` lists the recipes, `tmatch {command} RECIPE --help` the options.",
    )  # fmt: skip
    parser.add_argument("--config", type=nonempty_path, help="YAML file of settings that override the recipe's")
    parser.add_argument("--data.kind", dest="kind", help="data set to train on instead of the recipe's")
    known, (name, *rest) = parser.parse_known_args([*arguments, ""])
    if name in ("--help", "-h"):
        parser.print_help()
        return
    if not name or name.startswith("-"):
        parser.error("name a recipe first; `tmatch recipes` lists them")
    if name not in RECIPES:
        raise ValueError(f"There is no recipe '{name}'{did_you_mean(name, RECIPES)}; `tmatch recipes` lists them.")
    settings, rest = RECIPES[name](), rest[:-1]
    if known.config is not None:
        settings, rest = with_file(settings, known.config), [*rest, "--config", str(known.config)]
    if known.kind is not None:
        settings = with_data(settings, known.kind)
    call(f"{command} {name}", function, rest, recipe=settings)
