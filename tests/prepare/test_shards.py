"""Shards on disk: damage, foreign encoders, and folders of format 1."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sources import Encoders, folder_of, preparation, prepared, rows
from tiny import save_text_encoder

from tmatch.conditioning.transformers import load_text_encoder
from tmatch.data.manifest import TextIdentity
from tmatch.data.shards import ShardSet

FORMAT_1 = Path(__file__).parents[1] / "format_1" / "shards"


def test_shards_of_format_1_load() -> None:
    shards = ShardSet(FORMAT_1)
    old = json.loads((FORMAT_1 / "manifest.json").read_text())
    assert "format" not in old
    assert (shards.manifest.format, shards.manifest.samples, len(shards.files)) == (2, 12, 2)
    settings = shards.manifest.settings
    assert (settings.text.max_length, settings.batch_size, settings.autoencoder.codebook_size) == (128, 32, None)
    assert [shard.sha256 for shard in shards.manifest.shards] == [shard["sha256"] for shard in old["shards"]]
    for number, file in enumerate(shards.files):
        for name, tensor in load_file(file).items():
            assert torch.equal(getattr(shards.read(number), name), tensor)
    assert shards.null().shape[1] == settings.text.width


def test_damaged_and_foreign_shards_are_rejected(tmp_path: Path, encoders: Encoders) -> None:
    source, out = folder_of(tmp_path / "images", rows(4)), tmp_path / "out"
    manifest = prepared(source, out, encoders, kind="centre")
    shards, file = ShardSet(out), out / manifest.shards[0].file
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged"):
            ShardSet(out).read(0)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is damaged"):
        ShardSet(out).read(0)
    file.unlink()
    file.write_bytes(whole)
    own, text = shards.manifest.settings, TextIdentity(**encoders[1].identity())
    shards.require(own.model_copy(update={"text": text.model_copy(update={"name": "moved", "max_length": 3})}))
    other = load_text_encoder(str(save_text_encoder(tmp_path / "other", seed=1)))
    with pytest.raises(ValueError, match=r"another text encoder, with other weights, than"):
        shards.require(own.model_copy(update={"text": TextIdentity(**other.identity())}))
    scaled = own.autoencoder.model_copy(update={"scale": 5.0, "shift": 1.0})
    with pytest.raises(ValueError, match=r"another autoencoder, with another scale and another shift, than"):
        shards.require(own.model_copy(update={"autoencoder": scaled}))
    with pytest.raises(ValueError, match="contains shards with another text"):
        preparation(source, out, (encoders[0], other), "centre").run()


def test_an_invalid_manifest_is_rejected(tmp_path: Path, encoders: Encoders) -> None:
    prepared(folder_of(tmp_path / "images", rows(4)), tmp_path / "out", encoders, kind="centre")
    file = tmp_path / "out" / "manifest.json"
    manifest = json.loads(file.read_text())
    wrong = [
        {**manifest, "shards": [{**manifest["shards"][0], **values}]} for values in ({"size": [0, 0]}, {"samples": 3})
    ]
    for content in ({}, [], {**manifest, "format": 3}, {**manifest, "shards": []}, *wrong):
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"^[^\n]*manifest[^\n]*$"):
            ShardSet(tmp_path / "out")
    file.write_text(json.dumps(wrong[0]))
    with pytest.raises(ValueError, match=r"shards\.0\.size"):
        ShardSet(tmp_path / "out")
    file.write_text(json.dumps({**manifest, "samples": 5, "shards": [{**manifest["shards"][0], "samples": 5}]}))
    with pytest.raises(ValueError, match="do not match"):
        ShardSet(tmp_path / "out").read(0)
    with pytest.raises(ValueError, match="no complete set of shards"):
        ShardSet(tmp_path)


@pytest.mark.parametrize("value", [1e6, torch.nan], ids=["too large for the shards", "overflow in the encoder"])
def test_text_embeddings_that_overflow_are_rejected(value: float, tmp_path: Path, encoders: Encoders) -> None:
    text = copy.deepcopy(encoders[1])
    work = preparation(folder_of(tmp_path / "images", rows(2)), tmp_path / "out", (encoders[0], text), dtype="float16")
    text.network.encoder.final_layer_norm.weight.data.fill_(value)
    with pytest.raises(ValueError, match="overflows in float32 or float16; set --text-precision float32"):
        work.run()
