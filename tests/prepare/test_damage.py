"""What is damaged, odd or changed: images, captions, sources, shards."""

import copy
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from sources import Encoders, contents, encoded, folder_of, image, preparation, rows
from tiny import save_text_encoder

from tmatch.conditioning.transformers import load_text_encoder
from tmatch.data.manifest import AutoencoderIdentity, TextIdentity
from tmatch.data.shards import NULL, ShardSet
from tmatch.hub import EncoderDtype
from tmatch.prepare import Preparation

GOOD: dict[str, bytes] = {
    "cmyk.jpg": encoded(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "JPEG"),
    "grey16.png": encoded(Image.new("I;16", (20, 20), 32896)),
    "animated.gif": encoded(
        Image.new("RGB", (20, 20), "red"), "GIF", save_all=True, append_images=[Image.new("RGB", (20, 20), "blue")]
    ),
    "mislabelled.jpg": image(0),
    "transparent.png": encoded(Image.new("RGBA", (20, 20), (0, 0, 0, 0))),
    "palette.png": encoded(Image.new("P", (20, 20))),
    "grey16.tif": encoded(Image.new("I;16B", (20, 20), 32896), "TIFF"),
}
BAD: dict[str, tuple[bytes, str]] = {
    "corrupt.png": (image(1)[:100], "truncated"),
    "empty.png": (b"", "no image"),
    "text.png": (b"not an image", "no image"),
    "dot.png": (image(1, (1, 1)), "too small"),
    "huge.png": (encoded(Image.new("1", (20_000, 20_000)), compress_level=9), "exceeds limit"),
    "real.tif": (encoded(Image.new("F", (20, 20), 0.5), "TIFF"), "not whole"),
    "fine.tif": (encoded(Image.new("I", (20, 20), 70_000), "TIFF"), "not of 16 bits"),
    "program.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n", "no image"),
}


def test_odd_images_are_read_and_bad_ones_skipped_with_the_reason(tmp_path: Path, encoders: Encoders) -> None:
    images = [*((name, content, "a red circle") for name, content in GOOD.items())]
    images += [(name, content, "a red circle") for name, (content, _) in BAD.items()]
    images += [("a.png", image(2), ""), ("b.png", image(3), 7), ("c.png", image(4), " \n")]
    folder = folder_of(tmp_path / "images", images)
    with (folder / "metadata.jsonl").open("ab") as file:
        file.write(b'{"file_name": "cmyk.jpg"}\n{"text": "a"}\nno json\n{"file_name": "cmyk.jpg", "text": "\xff"}\n')
        file.write(b'{"file_name": "../out.png", "text": "a"}\n{"file_name": "none.png", "text": "a"}\n[]\n')
        file.write(b'{"file_name": "cmyk.jpg", "text": "\\ud800"}\n{"file_name": "\\udcff.png", "text": "a"}\n')
        file.write(b'{"file_name": "pipe", "text": "a"}\n{"file_name": "\\u0000", "text": "a"}\n')
        file.write(b'{"file_name": "circle.png", "text": "a"}\n' + b"[" * 100_000 + b"\n")
    os.mkfifo(folder / "pipe")
    (folder / "circle.png").symlink_to("circle.png")
    work = preparation(str(folder), tmp_path / "out", encoders, "centre")
    manifest = work.run()
    assert manifest is not None
    assert manifest.samples == len(GOOD)
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert manifest.skipped == len(skipped) == len(BAD) + 3 + 13
    reasons = [one["reason"] for one in skipped]
    expected = [reason for _, reason in BAD.values()]
    expected += ["empty", "not a text", "empty", "no text", "no file_name", "not JSON", "not UTF-8", "outside"]
    expected += ["No such file", "not a JSON object", "surrogate", "udcff.png cannot be read", "not a file", "null"]
    expected += ["Too many levels", "not JSON"]
    for reason, part in zip(reasons, expected, strict=True):
        assert part in reason
    pixels = {name: work.image(k).pixels.float().mean((1, 2)) for k, name in enumerate(GOOD)}
    for grey in ("grey16.png", "grey16.tif"):
        assert pixels[grey].tolist() == [128, 128, 128], "16 bits are scaled, not clipped"
    assert pixels["animated.gif"].argmax() == 0, "the first image of an animation"
    assert pixels["transparent.png"].tolist() == [255, 255, 255]


def test_damaged_and_foreign_shards_are_refused(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", rows(4)))
    preparation(source, tmp_path / "out", encoders, "centre").run()
    shards = ShardSet(tmp_path / "out")
    file = tmp_path / "out" / shards.manifest.shards[0].file
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged"):
            ShardSet(tmp_path / "out").read(0)
    file.write_bytes(whole)
    autoencoder, text = AutoencoderIdentity(**encoders[0].identity()), TextIdentity(**encoders[1].identity())
    shards.require(autoencoder, text.model_copy(update={"name": "moved", "longest": 3}))
    other = load_text_encoder(str(save_text_encoder(tmp_path / "other", seed=1)))
    with pytest.raises(ValueError, match=r"were made with the text encoder .*, with other weights;"):
        shards.require(autoencoder, TextIdentity(**other.identity()))
    with pytest.raises(ValueError, match=r"were made with the autoencoder .*, with another scale and another shift;"):
        shards.require(autoencoder.model_copy(update={"scale": 5.0, "shift": 1.0}), text)
    with pytest.raises(ValueError, match="holds shards with another text"):
        preparation(source, tmp_path / "out", (encoders[0], other), "centre").run()
    (tmp_path / "out" / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="not a manifest of this version"):
        ShardSet(tmp_path / "out")
    with pytest.raises(ValueError, match="holds no finished shards"):
        ShardSet(tmp_path)


def test_a_truncated_tar_is_used_up_to_there_and_the_rest_is_listed(tmp_path: Path, encoders: Encoders) -> None:
    with tarfile.open(tmp_path / "whole.tar", "w") as tar:
        for name, content, _ in rows(3):
            for suffix, part in ((".png", content), (".txt", b"a circle")):
                member = tarfile.TarInfo(name.removesuffix(".png") + suffix)
                member.size = len(part)
                tar.addfile(member, io.BytesIO(part))
    with tarfile.open(tmp_path / "whole.tar") as tar:
        last = tar.getmembers()[-2]
    whole = (tmp_path / "whole.tar").read_bytes()
    damaged = {
        "within": (whole[: last.offset_data + 100], 2, 2),  # the image that is cut, and what was after it
        "between": (whole[: last.offset], 2, 1),
        "flipped": (whole[: last.offset] + b"\xff" + whole[last.offset + 1 :], 2, 1),
        "hole": (whole[: last.offset] + bytes(512) + whole[last.offset + 512 :], 2, 1),
        "whole": (whole, 3, 0),
    }
    for name, (content, samples, skipped) in damaged.items():
        (tmp_path / f"{name}.tar").write_bytes(content)
        manifest = preparation(str(tmp_path / f"{name}.tar"), tmp_path / name, encoders, "centre").run()
        assert manifest is not None
        assert (manifest.samples, manifest.skipped) == (samples, skipped), name
        assert ("cut or damaged from here on" in (tmp_path / name / "skipped.jsonl").read_text()) == (name != "whole")


def test_members_of_one_name_are_samples_of_their_own_and_two_images_in_one_are_listed(
    tmp_path: Path, encoders: Encoders
) -> None:
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        for k, name in enumerate(
            ("a.png", "a.txt", "a.png", "a.txt", "b.png", "b.webp", "b.txt", "c.png", "c.png", "c.txt")
        ):
            part = b"a circle" if name.endswith("txt") else image(k)
            member = tarfile.TarInfo(name)
            member.size = len(part)
            tar.addfile(member, io.BytesIO(part))
    manifest = preparation(str(tmp_path / "images.tar"), tmp_path / "out", encoders).run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (3, 2)
    said = (tmp_path / "out" / "skipped.jsonl").read_text()
    assert "several images, .png and .webp: leave one" in said
    assert '"key":"images.tar/c","reason":"it has no .txt or .json' in said, "the text is its neighbour's"
    shards = ShardSet(tmp_path / "out")
    latents = [latent for number in range(len(manifest.shards)) for latent in shards.read(number).latents]
    assert len({tuple(latent.flatten().tolist()) for latent in latents}) == 3


def times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.rglob("*.safetensors") if file.name != NULL}


def test_encoders_may_lie_elsewhere_when_it_goes_on(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    preparation(str(source), tmp_path / "out", encoders).run()
    before = times(tmp_path / "out")
    work = preparation(str(source), tmp_path / "out", encoders)
    moved = work.settings.autoencoder.model_copy(update={"name": "elsewhere"})
    work.settings = work.settings.model_copy(update={"licence": "MIT", "autoencoder": moved})
    manifest = work.run()
    assert manifest is not None
    assert (manifest.settings.licence, manifest.settings.autoencoder.name) == ("MIT", "elsewhere")
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["licence"] == "MIT"
    assert times(tmp_path / "out") == before, "nothing was encoded again"
    work.settings = work.settings.model_copy(update={"autoencoder": moved.model_copy(update={"digest": "other"})})
    with pytest.raises(ValueError, match="holds shards with another autoencoder"):
        work.run()


def test_a_row_that_was_mended_is_taken_by_the_same_command(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    good = (source / "005.png").read_bytes()
    (source / "005.png").unlink()
    first = preparation(str(source), tmp_path / "out", encoders).run()
    before = contents(tmp_path / "out")
    preparation(str(source), tmp_path / "out", encoders).run()
    assert contents(tmp_path / "out") == before
    (source / "005.png").write_bytes(good)
    second = preparation(str(source), tmp_path / "out", encoders).run()
    assert first is not None
    assert second is not None
    assert (first.samples, first.skipped, second.samples, second.skipped) == (8, 1, 9, 0)
    preparation(str(source), tmp_path / "at once", encoders).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")


def test_a_row_that_is_mended_meanwhile_is_taken_by_the_next_command(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    good = (source / "001.png").read_bytes()
    (source / "001.png").unlink()
    work = preparation(str(source), tmp_path / "out", encoders)

    def mended(*arguments: object) -> object:
        (source / "001.png").write_bytes(good)
        return Preparation._latents(work, *arguments)

    work._latents = mended
    manifest = work.run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (8, 1)
    assert preparation(str(source), tmp_path / "out", encoders).run(rank=1, world=2) is None
    manifest = preparation(str(source), tmp_path / "out", encoders).run(rank=0, world=2)
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (9, 0)


def test_a_folder_begun_before_sources_had_a_digest_goes_on(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", rows(3)))
    preparation(source, tmp_path / "out", encoders).run()
    file = tmp_path / "out" / "settings.json"
    old = json.loads(file.read_text())
    del old["contents"], old["autoencoder"]["codes"]
    file.write_text(json.dumps(old))
    assert preparation(source, tmp_path / "out", encoders).run() is not None


def test_what_the_machine_does_is_not_blamed_on_rows(tmp_path: Path, encoders: Encoders) -> None:
    source = folder_of(tmp_path / "images", rows(9))
    work = preparation(str(source), tmp_path / "out", encoders)
    source.rename(tmp_path / "gone")
    with pytest.raises(OSError, match="The folder is gone"):
        work.run()
    (tmp_path / "gone").rename(source)
    manifest = work.run()
    assert manifest is not None
    assert (manifest.samples, manifest.skipped) == (9, 0)


def test_a_shard_that_lost_its_end_is_made_again(tmp_path: Path, encoders: Encoders) -> None:
    source = str(folder_of(tmp_path / "images", rows(9)))
    preparation(source, tmp_path / "out", encoders).run()
    before = contents(tmp_path / "out")
    shard = next((tmp_path / "out").glob("000001*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-7])
    preparation(source, tmp_path / "out", encoders).run()
    assert contents(tmp_path / "out") == before


def test_a_manifest_that_says_other_samples_is_refused(tmp_path: Path, encoders: Encoders) -> None:
    preparation(str(folder_of(tmp_path / "images", rows(4))), tmp_path / "out", encoders, "centre").run()
    file = tmp_path / "out" / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "samples": 5}))
    with pytest.raises(ValueError, match="does not add up"):
        ShardSet(tmp_path / "out")
    file.write_text(json.dumps({**manifest, "samples": 5, "shards": [{**manifest["shards"][0], "samples": 5}]}))
    with pytest.raises(ValueError, match="another number or size"):
        ShardSet(tmp_path / "out").read(0)


@pytest.mark.parametrize(
    ("precision", "value", "words"),
    [
        ("float32", 1e6, "makes values too large for float16; give --dtype float32"),
        ("float32", torch.inf, "overflows in float32; take another one"),
        ("float16", torch.nan, "overflows in float16; give --text-precision float32"),
    ],
)
def test_texts_that_cannot_be_held_are_refused_with_what_helps(
    precision: EncoderDtype, value: float, words: str, tmp_path: Path, encoders: Encoders
) -> None:
    autoencoder, text = encoders[0], copy.deepcopy(encoders[1])
    text.precision = precision
    work = preparation(str(folder_of(tmp_path / "images", rows(2))), tmp_path / "out", (autoencoder, text))
    work.settings = work.settings.model_copy(update={"dtype": "float16"})
    text.network.encoder.final_layer_norm.weight.data.fill_(value)
    with pytest.raises(ValueError, match=words):
        work.run()
