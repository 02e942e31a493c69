"""From labelled images, and images without captions, to shards."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from labelled import CLASSES, COUNT, LABELS, LAYOUTS, class_folders, npz, pixels, save_png
from sources import Encoders, contents, modified, preparation, prepared
from torch import Tensor

from tmatch.app.cli import main
from tmatch.codec import Codec, Patchify
from tmatch.data import FolderImages
from tmatch.data.crop import Crop
from tmatch.data.shards import ShardSet
from tmatch.data.sources import open_local
from tmatch.data.stream import StreamedStates
from tmatch.prepare import Preparation

SQUARES = {"kind": "centre", "crop": Crop(size=32, multiple=4)}
Named = dict[str, tuple[int | None, Tensor]]


def in_shards(folder: Path, source: Path) -> Named:
    """Label and latents of every row, by the name of its image."""
    shards, rows = ShardSet(folder), open_local(source)
    parts = [shards.read(number) for number in range(len(shards.files))]
    return {
        rows.entry(row).name: (one.condition(k, 0), one.latents[k])
        for one in parts
        for k, row in enumerate(one.rows.tolist())
    }


def in_memory(source: Path, codec: Codec) -> Named:
    both = [FolderImages(source, 32, held_out=held_out, fold=5) for held_out in (False, True)]
    encoded = [(data, codec.encode(torch.cat(list(data.batches())))) for data in both]
    return {
        name: (label, latents)
        for data, x in encoded
        for name, label, latents in zip(data.names, data.captions, codec.patch.decode(x), strict=True)
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_shards_and_memory_hold_the_same_latents_and_labels(name: str, tmp_path: Path, encoders: Encoders) -> None:
    write, channels = LAYOUTS[name]
    source = write(tmp_path / "data", pixels(channels))
    manifest = prepared(source, tmp_path / "out", encoders, **SQUARES)
    assert (manifest.samples, manifest.captions, manifest.skipped, manifest.null) == (COUNT, 0, 0, None)
    assert manifest.settings.text is None
    assert manifest.settings.classes == open_local(source).classes
    shards, memory = in_shards(tmp_path / "out", source), in_memory(source, Codec(Patchify((1, 1)), encoders[0]))
    assert shards.keys() == memory.keys()
    for row, (label, latents) in shards.items():
        assert label == memory[row][0]
        torch.testing.assert_close(latents, memory[row][1], rtol=1e-5, atol=1e-5)
    assert sorted(label for label, _ in shards.values()) == sorted(LABELS.tolist())


def test_a_stream_gives_each_image_its_label(tmp_path: Path, encoders: Encoders) -> None:
    """An epoch, by any number of workers."""
    source = npz(tmp_path / "data", pixels())
    prepared(source, tmp_path / "out", encoders, **SQUARES)
    expected = {latents.numpy().tobytes(): label for label, latents in in_shards(tmp_path / "out", source).values()}
    for workers in (0, 2):
        states, found = StreamedStates((tmp_path / "out",), Patchify((1, 1)), seed=1, workers=workers), {}
        for step in range(5):
            x, labels = states.batch(step, 2, 0, 1)
            latents = states.patch.decode(x)
            found |= {one.contiguous().numpy().tobytes(): label for one, label in zip(latents, labels, strict=True)}
        assert found == expected


@pytest.mark.parametrize("labels", ["auto", "none"])
def test_killed_and_restarted_labels_are_written_as_the_same_bytes(
    labels: str, tmp_path: Path, encoders: Encoders
) -> None:
    source = class_folders(tmp_path / "data", pixels())
    manifest = prepared(source, tmp_path / "whole", encoders, labels=labels, **SQUARES)
    assert manifest.settings.classes == (CLASSES if labels == "auto" else None)
    for last in (0, 2, 1):
        again, calls = preparation(source, tmp_path / "killed", encoders, labels=labels, **SQUARES), []

        def until(images: Tensor, again: Preparation = again, calls: list[int] = calls, last: int = last) -> Tensor:
            calls.append(1)
            if len(calls) > last:
                raise KeyboardInterrupt
            return Preparation._latents(again, images)

        again._latents = until
        with pytest.raises(KeyboardInterrupt):
            again.run()
    prepared(source, tmp_path / "killed", encoders, labels=labels, **SQUARES)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    before = modified(tmp_path / "whole")
    prepared(source, tmp_path / "whole", encoders, labels=labels, **SQUARES)
    assert modified(tmp_path / "whole") == before
    other = "none" if labels == "auto" else "auto"
    with pytest.raises(ValueError, match=r"contains shards with another .*classes"):
        preparation(source, tmp_path / "whole", encoders, labels=other, **SQUARES).run()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_damaged_image_in_a_class_is_skipped(tmp_path: Path, encoders: Encoders) -> None:
    source = class_folders(tmp_path / "data", pixels())
    (source / "dog" / "bad.png").write_bytes(b"no image")
    manifest = prepared(source, tmp_path / "out", encoders, **SQUARES)
    assert (manifest.samples, manifest.skipped) == (COUNT, 1)
    assert "dog/bad.png" in (tmp_path / "out" / "skipped.jsonl").read_text()
    save_png(source / "dog" / "bad.png", pixels(seed=1)[0])
    assert prepared(source, tmp_path / "out", encoders, **SQUARES).samples == COUNT + 1
    assert in_shards(tmp_path / "out", source)["dog/bad.png"][0] == CLASSES.index("dog")


def test_folders_with_other_classes_or_captions_are_not_joined(tmp_path: Path, encoders: Encoders) -> None:
    source = class_folders(tmp_path / "data", pixels())
    prepared(source, tmp_path / "labels", encoders, **SQUARES)
    prepared(source, tmp_path / "none", encoders, labels="none", **SQUARES)
    (source / "dog").rename(source / "fox")
    prepared(source, tmp_path / "others", encoders, **SQUARES)
    (source / "cat" / "0.txt").write_text("a cat")
    prepared(source, tmp_path / "captions", encoders, **SQUARES)
    assert len(ShardSet(tmp_path / "labels")) == COUNT
    for other in ("none", "others", "captions"):
        with pytest.raises(ValueError, match=r"2 classes \(cat, dog\)"):
            ShardSet(tmp_path / "labels", tmp_path / other)


def test_manifests_without_the_new_keys_load(tmp_path: Path, encoders: Encoders) -> None:
    prepared(class_folders(tmp_path / "data", pixels()), tmp_path / "out", encoders, labels="none", **SQUARES)
    file = tmp_path / "out" / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["settings"]["classes"], manifest["settings"]["text"], manifest["null"]
    file.write_text(json.dumps(manifest))
    assert ShardSet(tmp_path / "out").read(0).condition(0, 0) is None
    file.write_text(json.dumps({**manifest, "settings": {**manifest["settings"], "classes": CLASSES}}))
    with pytest.raises(ValueError, match="does not hold"):
        ShardSet(tmp_path / "out").read(0)


def test_the_command_needs_no_text_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encoders: Encoders
) -> None:
    source = class_folders(tmp_path / "data", pixels())
    command = ["prepare", str(source), "--autoencoder", encoders[0].name, "--size", "32", "--multiple", "4"]
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--text", encoders[1].name, "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "leave out --text" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    main([*command, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["samples"] == COUNT
    assert "of 2 classes" in printed.err
    main([*command, "--labels", "none", "--out", str(tmp_path / "none")])
    assert ShardSet(tmp_path / "none").manifest.settings.classes is None
    np.savez(tmp_path / "bad.npz", images=np.array([{}]))
    with pytest.raises(SystemExit) as stopped:
        main(["prepare", str(tmp_path / "bad.npz"), *command[2:], "--out", str(tmp_path / "bad")])
    assert stopped.value.code == 2
