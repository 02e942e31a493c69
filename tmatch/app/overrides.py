"""Settings to and from a YAML file."""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from tmatch.config import did_you_mean, lookup

AnySettings = TypeVar("AnySettings", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """The safe loader, which also reads 1e-4 as a number (as YAML 1.2 does) and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _DuplicateKey(
                    f"sets '{key.value}' twice, again in line {key.start_mark.line + 1}; remove one of them."
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _DuplicateKey(ValueError):
    """A key is set twice."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def with_file(settings: AnySettings, path: Path) -> AnySettings:
    """Settings, overridden by a YAML file."""
    if not path.is_file():
        raise ValueError(f"There is no settings file {path}.")
    try:
        changes = _Loader(path.read_text(encoding="utf-8-sig")).get_single_data()
    except _DuplicateKey as error:
        raise ValueError(f"{path} {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML ({' '.join(str(error).split())}).") from error
    if isinstance(changes, dict) and {"run", "shape"} <= changes.keys():
        changes = changes["run"]  # the model.json of a run
    if not isinstance(changes, dict):
        raise ValueError(f"{path} has no settings; write them as 'key: value', nested as in model.json.")
    data = changes.get("data")
    if isinstance(data, dict) and "kind" in data:
        settings = with_data(settings, str(data["kind"]))
    try:
        text = json.dumps(_merged(settings.model_dump(mode="json"), changes, str(path)))
    except TypeError as error:  # a date, for one
        raise ValueError(f"{path} has a value of an unsupported type ({error}).") from error
    return type(settings).model_validate_json(text)


def with_data(settings: AnySettings, kind: str) -> AnySettings:
    """Settings with another data set, at its defaults."""
    from tmatch.datasets import DATASETS, ShardsData

    lookup("data set", DATASETS, kind)
    own = settings.model_dump(mode="json")
    if own["data"]["kind"] == kind:
        return settings
    encoders = {"autoencoder": None, "text": None} if DATASETS[kind] is ShardsData else {}
    return type(settings).model_validate_json(json.dumps({**own, "data": {"kind": kind}, **encoders}))


def as_file(settings: BaseModel) -> str:
    """All settings as YAML that `with_file` reads back."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def _merged(settings: dict[str, Any], changes: dict[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Nested settings with some changed; an unknown key is an error that suggests the closest one."""
    result = dict(settings)
    for key, value in changes.items():
        if key not in settings:
            hint = (
                did_you_mean(f"{prefix}{key}", [f"{prefix}{name}" for name in settings])
                or f"; the keys are {', '.join(settings)}"
            )
            raise ValueError(f"{where} sets '{prefix}{key}', which is not a setting of this recipe{hint}.")
        if isinstance(settings[key], dict) and isinstance(value, dict):
            result[key] = _merged(settings[key], value, where, f"{prefix}{key}.")
        else:
            result[key] = value
    return result
