"""Every count of every configuration has an upper bound."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

import tmatch as tm
from tmatch.codec.codes import FiniteScalar
from tmatch.config import Config
from tmatch.data.crop import Crop
from tmatch.data.manifest import ShardSettings
from tmatch.datasets import AssumedData
from tmatch.generation.config import SamplingConfig
from tmatch.recipes import RECIPES
from tmatch.runs import RunConfig
from tmatch.runs.autoencoder import AutoencoderRun
from tmatch.runs.config import ModelConfig
from tmatch.sampler import build_sampler
from tmatch.tensors import positive_int
from tmatch.train import TrainConfig

ROWS = {"ShardSettings.rows"}
"""A number of rows costs nothing by itself."""


def integers(schema: object, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The integers of a JSON schema, with their places."""
    if isinstance(schema, dict):
        if schema.get("type") == "integer" and "const" not in schema:
            yield where, schema
        for key, value in schema.items():
            name = key if key not in ("properties", "$defs", "anyOf", "items", "prefixItems") else ""
            yield from integers(value, ".".join(filter(None, (where, name))))
    for part in schema if isinstance(schema, list) else ():
        yield from integers(part, where)


@pytest.mark.parametrize("kind", [RunConfig, AutoencoderRun, ModelConfig, Crop, ShardSettings])
def test_every_integer_is_bounded(kind: type[Config]) -> None:
    found = dict(integers(kind.model_json_schema(), kind.__name__))
    assert len(found) > 2
    unbounded = {name for name, one in found.items() if not {"maximum", "exclusiveMaximum"} & {*one}}
    assert unbounded <= ROWS


def test_what_papers_use_is_within_the_bounds() -> None:
    assert all(make() for make in RECIPES.values())
    assert TrainConfig(steps=7_000_000, batch_size=65_536, warmup=100_000).steps == 7_000_000
    assert positive_int("gpus", 16_384) == 16_384


@pytest.mark.parametrize(
    "make",
    [
        lambda: SamplingConfig(steps=10**9),
        lambda: SamplingConfig(head_steps=10**9),
        lambda: tm.Grid.uniform(10**9),
        lambda: tm.Continuous(steps=2**70),
        lambda: tm.Euler(10**9),
        lambda: tm.HeadConfig(depth=10**9),
        lambda: tm.HeadConfig(patch=(1, 2**40)),
        lambda: AssumedData(size=10**12),
        lambda: FiniteScalar((10**6,) * 4),
        lambda: build_sampler("restart:0.6,0.4,1e9"),
        lambda: tm.RestartSampler(((0.6, 0.4, 10**9),)),
        lambda: positive_int("images", 2**70),
    ],
)
def test_counts_that_cannot_be_meant_are_rejected(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"at most|less than or equal|times <=|arguments"):
        make()


def test_a_bound_is_named_with_its_option() -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        TrainConfig(steps=1, batch_size=10**12)
