"""Settings to and from a YAML file."""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from tmatch.config import lookup
from tmatch.migrate import migrate_sampling

AnySettings = TypeVar("AnySettings", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """The safe loader, which also reads 1e-4 as a number (as YAML 1.2 does) and rejects duplicate keys and aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # aliases of aliases can stand for more than fits in memory
            raise yaml.YAMLError("aliases such as *name are not supported; repeat the value")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.YAMLError(f"'{key.value}' is set twice, again in line {key.start_mark.line + 1}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def with_file(settings: AnySettings, path: Path) -> AnySettings:
    """Settings, overridden by a YAML file."""
    try:
        with path.open("rb") as file:
            content = file.read(2**20 + 1)
        if len(content) > 2**20:
            raise ValueError("it is larger than 1 MiB")
        changes = _Loader(content.decode("utf-8-sig")).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML ({' '.join(str(error).split())}).") from error
    if isinstance(changes, dict) and {"run", "shape"} <= changes.keys():
        changes = changes["run"]  # the model.json of a run
    if not isinstance(changes, dict):
        raise ValueError(f"{path} has no settings; write them as 'key: value', nested as in model.json.")
    data = changes.get("data")
    if isinstance(data, dict) and "kind" in data:
        settings = with_data(settings, str(data["kind"]))
    try:
        text = json.dumps(_merged(settings.model_dump(mode="json"), migrate_sampling(changes)))
    except (TypeError, ValueError) as error:  # TypeError: a date, for one
        raise ValueError(f"{path}: {error}") from error
    return type(settings).model_validate_json(text)


def with_data(settings: AnySettings, kind: str) -> AnySettings:
    """Settings with another data set, at its defaults."""
    from tmatch.datasets import DATASETS, ShardsData

    lookup("data set", DATASETS, kind)
    own = settings.model_dump(mode="json")
    if own["data"]["kind"] == kind:
        return settings
    if DATASETS[kind] is ShardsData and "text" not in own:
        raise ValueError("An autoencoder trains on images, not on data shards: use --data.kind shapes or folder.")
    encoders = {"autoencoder": None, "text": None} if DATASETS[kind] is ShardsData else {}
    return type(settings).model_validate_json(json.dumps({**own, "data": {"kind": kind}, **encoders}))


def as_file(settings: BaseModel) -> str:
    """All settings as YAML that `with_file` reads back."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def _merged(settings: dict[str, Any], changes: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with some changed; an unknown key is an error that suggests the closest one."""
    result, known = dict(settings), {f"{prefix}{key}": value for key, value in settings.items()}
    for key, value in changes.items():
        own, nested = lookup("setting", known, f"{prefix}{key}"), isinstance(value, dict)
        result[key] = _merged(own, value, f"{prefix}{key}.") if nested and isinstance(own, dict) else value
    return result
