"""Settings from a YAML file, on top of a recipe's; and as one."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

Settings = TypeVar("Settings", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """The safe loader, to which 1e-4 is a number, as it is to people and to YAML 1.2, and no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _Twice(f"sets '{key.value}' twice, again in line {key.start_mark.line + 1}; leave one of them.")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Twice(ValueError):
    """A key stands twice where the last one would count."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def with_file(settings: Settings, path: Path) -> Settings:
    """The settings, changed where a YAML file says so."""
    if not path.is_file():
        raise ValueError(f"There is no file {path} to take settings from.")
    try:
        changes = _Loader(path.read_text(encoding="utf-8-sig")).get_single_data()
    except _Twice as error:
        raise ValueError(f"{path} {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML ({' '.join(str(error).split())}).") from error
    if isinstance(changes, dict) and {"recipe", "shape"} <= changes.keys():
        changes = changes["recipe"]  # it is the model.json of a run, for another like it
    if not isinstance(changes, dict):
        raise ValueError(f"{path} holds no settings; write them as 'key: value', nested as in model.json.")
    try:
        text = json.dumps(merged(settings.model_dump(mode="json"), changes, str(path)))
    except TypeError as error:  # a date, for one
        raise ValueError(f"{path} holds a value that is no setting ({error}).") from error
    return type(settings).model_validate_json(text)


def as_file(settings: BaseModel) -> str:
    """All settings as YAML, which `with_file` reads back."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def merged(settings: dict[str, Any], changes: dict[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Nested settings with some of them changed; a key that is not there is refused, with the one that was meant."""
    result = dict(settings)
    for key, value in changes.items():
        if key not in settings:
            meant = get_close_matches(str(key), settings, n=1, cutoff=0.4)
            hint = f" (did you mean '{prefix}{meant[0]}'?)" if meant else f"; the keys are {', '.join(settings)}"
            raise ValueError(f"{where} sets '{prefix}{key}', which is no setting of this recipe{hint}.")
        if isinstance(settings[key], dict) and isinstance(value, dict):
            result[key] = merged(settings[key], value, where, f"{prefix}{key}.")
        else:
            result[key] = value
    return result
