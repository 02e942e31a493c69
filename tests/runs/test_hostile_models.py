"""Model folders that are damaged or hostile: an error in a sentence, at once, and nothing elsewhere is opened."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import small_run
from tiny import save_kl_autoencoder, save_text_encoder
from watch import opened_files

from tmatch.codec.diffusers import load_autoencoder
from tmatch.codec.saved import shipped_autoencoder
from tmatch.conditioning.transformers import load_text_encoder
from tmatch.data.manifest import AutoencoderIdentity, TextIdentity
from tmatch.datasets import ShardEncoders
from tmatch.hub import HubOptions
from tmatch.runs import load_model
from tmatch.runs.config import ModelConfig
from tmatch.runs.export import export

Damage = Callable[[Path], object]
HUGE = (2**40, 10**9, 10**12, 2**63, 2**70)


def save(folder: Path) -> Path:
    """A model with its own autoencoder."""
    export(load_model("shapes-fm"), folder, torch.float32)
    edit("encoders.autoencoder", "mine")(folder)
    edit("encoders.digest", None)(folder)
    (folder / "autoencoder").mkdir()
    save_file(shipped_autoencoder().state_dict(), folder / "autoencoder" / "autoencoder.safetensors")
    settings = {"channels": 4, "width": 48, "blocks": 1, "levels": []}
    (folder / "autoencoder" / "recipe.json").write_text(json.dumps(settings))
    return folder


def edit(keys: str, value: object, file: str = "model.json") -> Damage:
    """Set a value of a JSON file."""

    def damage(folder: Path) -> None:
        whole = part = json.loads((folder / file).read_text())
        *outer, last = (int(key) if key.isdigit() else key for key in keys.split("."))
        for key in outer:
            part = part[key]
        part[last] = value
        (folder / file).write_text(json.dumps(whole))

    return damage


def contents(text: str | bytes, file: str = "model.json") -> Damage:
    return lambda folder: (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())


def rewritten(change: Callable[[bytes], bytes], file: str) -> Damage:
    return lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes()))


def header(change: Callable[[dict[str, Any]], object] = lambda _: None, length: int | None = None) -> Damage:
    """Change the header of the weights, or the length that it declares."""

    def damage(folder: Path) -> None:
        data = (folder / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        entries = json.loads(data[8 : 8 + size])
        change(entries)
        new = json.dumps(entries).encode()
        first = (len(new) if length is None else length).to_bytes(8, "little")
        (folder / "model.safetensors").write_bytes(first + new + data[8 + size :])

    return damage


def offsets(first: int, last: int) -> Damage:
    return header(lambda entries: entries[max(entries)].update(data_offsets=[first, last]))


def tensors(change: Callable[[dict[str, torch.Tensor]], object], file: str = "model.safetensors") -> Damage:
    def damage(folder: Path) -> None:
        weights = load_file(folder / file)
        change(weights)
        save_file(weights, folder / file)

    return damage


def filled(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda weights: next(x for x in weights.values() if x.is_floating_point()).view(-1)[:1].fill_(value)


def moved(file: str) -> Damage:
    """Replace a file by a link to it outside the folder."""

    def damage(folder: Path) -> None:
        (folder / file).rename(folder.parent / "elsewhere")
        (folder / file).symlink_to("../" * len(Path(file).parts) + "elsewhere")

    return damage


def cast(dtype: torch.dtype) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda weights: weights.update({name: x.to(dtype) for name, x in weights.items()})


def foreign_lora(weights: dict[str, torch.Tensor]) -> None:
    """Factors of a few bytes whose product has 2**40 numbers."""
    name = next(name for name, x in weights.items() if x.ndim == 2)
    layer = name.removesuffix(".weight")
    weights[f"{layer}.base_layer.weight"] = weights.pop(name)
    weights[f"{layer}.lora_A.default.weight"], weights[f"{layer}.lora_B.default.weight"] = (
        torch.zeros(1, 2**20), torch.zeros(2**20, 1),
    )  # fmt: skip


RECIPE, AUTOENCODER = "autoencoder/recipe.json", "autoencoder/autoencoder.safetensors"
DAMAGES: dict[str, Damage] = {
    **{
        f"{section}.{key} {value}": edit(f"{section}.{key}", value)
        for section, keys in {
            "run.backbone": ("width", "depth", "heads"), "run.sampling": ("steps", "head_steps"),
            "encoders.conditioning": ("width", "depth", "heads", "max_length"),
        }.items() for key in keys for value in HUGE
    },
    **{f"patch {side}": edit("run.patch", [side, side]) for side in (1, 3, 4, *HUGE)},
    **{f"shape {k} {side}": edit(f"shape.{k}", side) for k in range(3) for side in HUGE},
    "grids": edit("grids", [[2**40, 2**40]]),
    "labels": edit("encoders.conditioning", {"kind": "labels", "classes": 10**12}),
    "no heads": edit("encoders.conditioning.heads", 0),
    "depth in words": edit("encoders.conditioning.depth", "two"),
    "unknown conditioner": edit("encoders.conditioning.kind", "telepathy"),
    "unknown argument": edit("encoders.conditioning.code", "exit()"),
    "other vocabulary": edit("encoders.conditioning.vocabulary", ["red"]),
    "newer format": edit("format", 3),
    "text as format": edit("format", "2"),
    "deep lists": contents("[" * 100_000),
    "deep objects": contents('{"run":' * 100_000),
    "nested in a field": contents('{"format": 2, "run": ' + "[" * 900 + "]" * 900 + "}"),
    "list": contents("[]"),
    "null": contents("null"),
    "number": contents("1e999"),
    "text": contents('"format"'),
    "empty": contents(""),
    "bytes": contents(b'{"format": \xff\xfe}'),
    "long number": contents('{"format": ' + "9" * 5000 + "}"),
    "not a number": contents('{"format": NaN}'),
    "same key twice": rewritten(lambda data: b'{"format": 2,' + data[1:], "model.json"),
    "header of 2**60 bytes": header(length=2**60),
    "header of 2**64 - 1 bytes": header(length=2**64 - 1),
    "negative offsets": offsets(-8, -4),
    "overlapping offsets": offsets(0, 4),
    "offsets beyond the end": offsets(0, 2**50),
    "huge tensor": header(lambda entries: entries[max(entries)].update(shape=[2**31, 2**31])),
    "empty weights": contents("", "model.safetensors"),
    "text as weights": contents("weights" * 1000, "model.safetensors"),
    "truncated": rewritten(lambda data: data[:-1], "model.safetensors"),
    "no tensors": tensors(dict.clear),
    "one tensor missing": tensors(dict.popitem),
    "foreign tensor": tensors(lambda weights: weights.update(more=torch.zeros(1))),
    "NaN": tensors(filled(torch.nan)),
    "infinity": tensors(filled(-torch.inf)),
    **{f"weights in {dtype}": tensors(cast(dtype)) for dtype in (torch.int64, torch.bool, torch.complex64)},
    "LoRA": tensors(foreign_lora),
    "NaN in the autoencoder": tensors(filled(torch.nan), AUTOENCODER),
    "infinity in the autoencoder": tensors(filled(torch.inf), AUTOENCODER),
    "truncated autoencoder": contents(b"\0" * 100, AUTOENCODER),
    "autoencoder without weights": tensors(dict.clear, AUTOENCODER),
    **{f"autoencoder {key} {x}": edit(key, x, RECIPE) for key in ("channels", "width", "blocks") for x in (8, *HUGE)},
    "levels": edit("levels", [2**40] * 6, RECIPE),
    "integers as autoencoder": tensors(cast(torch.int64), AUTOENCODER),
    "linked autoencoder": moved(AUTOENCODER),
    "linked recipe": moved(RECIPE),
    "deep recipe": contents("[" * 100_000, RECIPE),
    "recipe of another kind": contents("[1]", RECIPE),
}  # fmt: skip


@pytest.fixture(scope="module")
def intact_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "intact")


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_or_hostile_model_is_an_error_in_a_sentence_at_once(
    damage: Damage, intact_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(intact_model, tmp_path / "model"))
    damage(folder)
    before = time.process_time()
    with pytest.raises(ValueError, match=str(folder)) as raised:
        load_model(str(folder))
    assert time.process_time() - before < 10
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500 + len(str(folder))


def test_the_intact_model_loads_and_its_folder_may_be_a_link(intact_model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(intact_model)
    one, other = (load_model(name).pipeline.state_dict() for name in (str(intact_model), str(tmp_path / "link")))
    assert all(torch.equal(x, other[name]) for name, x in one.items())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its encoders, as the cache of the hub stores it: each file is a link to a blob."""
    cache = tmp_path_factory.mktemp("hub") / "models--someone--net"
    folder = cache / "snapshots" / "1"
    text = load_text_encoder(str(save_text_encoder(folder / "text_encoder")))
    autoencoder = load_autoencoder(str(save_kl_autoencoder(folder / "autoencoder")))
    encoders = ShardEncoders(
        autoencoder=AutoencoderIdentity(**autoencoder.identity()), text=TextIdentity(**text.identity())
    )
    config = ModelConfig(run=small_run("fm"), shape=(2, 2, 16), encoders=encoders)
    weights = config.run.network(config.shape, encoders.condition_width).state_dict()
    save_file({f"model.{name}": x for name, x in weights.items()}, folder / "model.safetensors")
    (folder / "model.json").write_text(config.model_dump_json())
    (folder / "README.md").write_text("---\nlibrary_name: tmatch\n---\nAn edited card.")
    (cache / "blobs").mkdir()
    for number, file in enumerate([file for file in folder.rglob("*") if file.is_file()]):
        blob = cache / "blobs" / str(number)
        file.rename(blob)
        file.symlink_to(Path(*[".."] * len(file.relative_to(cache).parent.parts), "blobs", str(number)))
    return cache


def test_a_model_in_the_cache_of_the_hub_loads(published: Path, tmp_path: Path) -> None:
    """Its card is a link into the cache, too, and is exported."""
    export(load_model(str(published / "snapshots" / "1")), tmp_path / "x")
    assert (tmp_path / "x" / "README.md").read_text().endswith("An edited card.")


@pytest.mark.parametrize("name", ["README.md", "result.json"])
def test_export_follows_no_link_out_of_the_folder(name: str, intact_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(intact_model, tmp_path / "model"))
    (folder / "README.md").unlink()
    (folder / name).write_text('---\nlibrary_name: tmatch\nsecret: "x"' if name == "README.md" else "{}")
    moved(name)(folder)
    with pytest.raises(ValueError, match=f"{name} is a link to a file outside its folder"):
        export(load_model(str(folder)), tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("part", ["text_encoder", "autoencoder"])
@pytest.mark.parametrize("name", ["absolute", "../../../outside", "someone/net", "~/net"])
def test_a_model_from_the_hub_does_not_refer_to_local_files(
    name: str, part: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(published, tmp_path / "cache", symlinks=True)) / "snapshots" / "1"
    outside = tmp_path / "someone" / "net"
    shutil.copytree(folder / part, outside)
    shutil.rmtree(folder / part)
    (tmp_path / "outside").symlink_to(outside)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    text = (folder / "model.json").read_text()
    (folder / "model.json").unlink()
    (folder / "model.json").write_text(text)
    field = part.removesuffix("_encoder")
    edit(f"encoders.{field}.name", str(outside) if name == "absolute" else name)(folder)
    with (
        opened_files(outside) as names,
        pytest.raises(ValueError, match=r"encoder|There is no folder"),
    ):
        load_model(str(folder), HubOptions(offline=True))
    assert not names
