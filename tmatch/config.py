"""Base class of all settings, and names of table rows."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

T = TypeVar("T")
MAX_LAYERS, MAX_SIZE, MAX_COUNT, MAX_SAMPLING_STEPS, MAX_STEPS = 1_000, 65_536, 1_000_000, 10_000, 10**9
"""Larger numbers are mistakes; they would only fill memory or run forever."""
Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]  # also workers, and samples of one token
Dimension = Annotated[int, Field(gt=0, le=MAX_SIZE)]  # width of a vector, length of a sequence, side of an image
Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]  # of images, codes or shards
SamplingSteps = Annotated[int, Field(gt=0, le=MAX_SAMPLING_STEPS)]
TrainingSteps = Annotated[int, Field(gt=0, le=MAX_STEPS)]


def _nonempty(path: Any) -> Any:  # noqa: ANN401
    """The same path; an empty one, which would stand for the current folder, is an error."""
    if path == "":
        raise ValueError("The path is empty; name a file or folder, or '.' for the current folder.")
    return path


def nonempty_path(path: str | Path) -> Path:
    """A path from its name, which must not be empty."""
    return Path(_nonempty(path))


NonemptyPath = Annotated[Path, BeforeValidator(_nonempty)]
FREE: dict[str, Any] = {"resume": "free"}
"""Marks a field that may change when a run is resumed: `Field(..., json_schema_extra=FREE)`."""


def free_field(default: Any, description: str, **constraints: Any) -> Any:  # noqa: ANN401
    """Return a field that may change when a run is resumed."""
    return Field(default=default, description=description, json_schema_extra=FREE, **constraints)


class Config(BaseModel):
    """Typed, frozen settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def free_keys(config: Config) -> set[str]:
    """Return the dotted names of the fields that may change when a run is resumed, nested ones included."""
    free: set[str] = set()
    for name, field in type(config).model_fields.items():
        value, extra = getattr(config, name), field.json_schema_extra
        if isinstance(extra, dict) and extra.get("resume") == "free":
            free.add(name)
        elif isinstance(value, Config):
            free |= {f"{name}.{key}" for key in free_keys(value)}
    return free


def default_settings(config: Config) -> dict[str, Any]:
    """Return the default of every field that has one, as JSON values, with nested configs of the given types."""
    defaults: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Config):
            defaults[name] = default_settings(value)
        elif not field.is_required():
            defaults[name] = TypeAdapter(Any).dump_python(field.get_default(call_default_factory=True), mode="json")
    return defaults


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return the most similar of some words as a question in parentheses, or nothing."""
    close = get_close_matches(word.lower(), list(words), n=1, cutoff=0.4)
    return f" (did you mean '{close[0]}'?)" if close else ""


def lookup(what: str, table: Mapping[str, T], name: str) -> T:
    """Return the entry of that name; an unknown name is an error that suggests the closest one."""
    if name not in table:
        raise ValueError(f"There is no {what} '{name}'{did_you_mean(name, table)}; choose from {', '.join(table)}.")
    return table[name]


def call_by_name(what: str, table: Mapping[str, Callable[..., T]], spec: str, *args: Any) -> T:  # noqa: ANN401
    """Call the entry of a table that `spec` names, with the numbers after its colon: 'name', 'name:0.5', 'name:1,2'."""
    name, _, given = spec.partition(":")
    make = lookup(what, table, name)
    try:
        numbers = [float(number) for number in given.split(",") if given]
    except ValueError:
        raise ValueError(f"The arguments of a {what} are numbers, as in {name}:0.5; got '{spec}'.") from None
    try:
        return make(*args, *numbers)
    except (TypeError, OverflowError):  # OverflowError: an infinite number
        raise ValueError(f"The {what} '{name}' does not take the arguments '{given}'.") from None


def printable(text: str) -> str:
    """Return a text with control characters escaped: a terminal would obey those in a prompt or a file name."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
