"""Hostile data for fuzz.py: folders, tar and parquet files to prepare, data shards, and YAML settings."""

import io
import json
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fuzz_files import (
    ESCAPE,
    JSON_FILES,
    SIZES,
    SPECIAL,
    TEXT,
    TRAIN,
    WEIGHTS_FILES,
    Case,
    Setup,
    bytes_of,
    edit,
    flipped,
    folder,
    instead,
    options,
    png,
    sequence,
    use,
    write,
)  # fmt: skip


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A small PNG file that declares a huge image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    )


IMAGES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"", "not an image": lambda: b"hello", "truncated": lambda: png(9)[:400], "a bomb": bomb,
    "one pixel": lambda: png(9, (1, 1)), "a line": lambda: png(9, (20_000, 1)), "zero size": lambda: bomb(0, 0),
    "a pickle": lambda: b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.",
    "an SVG": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "a damaged checksum": lambda: png(9)[:60] + b"\0\0\0\0" + png(9)[64:],
}  # fmt: skip
ROWS: dict[str, dict[str, Any] | str] = {
    "not JSON": "{", "deep": "[" * 100_000, "a list": "[]", "no file name": {"text": "x"},
    "no text": {"file_name": "0.png"},
    "an absolute path": {"file_name": "/etc/hostname", "text": "x"},
    "a path outside": {"file_name": "../../outside/secret.txt", "text": "x"},
    "a missing file": {"file_name": "nowhere.png", "text": "x"}, "a number": {"file_name": 3, "text": "x"},
    "a folder": {"file_name": ".", "text": "x"},
    "an empty caption": {"file_name": "0.png", "text": " "}, "a caption of numbers": {"file_name": "0.png", "text": 3},
    "a surrogate": '{"file_name": "0.png", "text": "\\ud800"}', "a NUL": {"file_name": "0\0.png", "text": "x"},
    "a long name": {"file_name": "x" * 300, "text": "x"}, "escapes": {"file_name": ESCAPE, "text": "x"},
    "the FIFO": {"file_name": "fifo.png", "text": "x"},
}  # fmt: skip
GOOD_ROWS: dict[str, dict[str, Any]] = {
    "a caption of a million characters": {"file_name": "0.png", "text": "red " * 250_000},
    "a caption with escapes": {"file_name": "0.png", "text": f"a {ESCAPE} circle"},
    "a caption with NUL": {"file_name": "0.png", "text": "a\0b"}, "an emoji": {"file_name": "0.png",
    "text": "\U0001f600 \u202e circle"},
}  # fmt: skip


def prepare(source: str = "images", **changes: object) -> list[str]:
    """A command line; the folder of the fixtures is in the environment, and the cases read it when they run."""
    encoders = {"autoencoder": "vae", "text": "text", "size": 16, "multiple": 2, "smallest": 4, **changes}
    return ["prepare", source, *options(encoders), "--out", "x"]


def encoders(*steps: Setup) -> Setup:
    return sequence(partial(use, "vae", "vae"), partial(use, "text", "text"), *steps)


def counted(good: int, skipped: int | None = None) -> Callable[[Path, int], str]:
    """The number of samples and of skipped rows in the manifest."""

    def check(root: Path, code: int) -> str:
        if code:
            return ""
        found = json.loads((root / "work/x/manifest.json").read_text())
        expected = (good, found["skipped"] if skipped is None else skipped)
        return (
            ""
            if (found["samples"], found["skipped"]) == expected
            else f"{found['samples']} samples, {found['skipped']} skipped"
        )

    return check


def tar(*members: tuple[str, bytes], change: Callable[[tarfile.TarInfo], object] = lambda info: None) -> Setup:
    """A tar file of three good samples and some other members, whose headers may be changed."""

    def setup() -> None:
        with tarfile.open("data.tar", "w") as file:
            good = [
                (f"{k}.{kind}", content)
                for k in range(3)
                for kind, content in (("png", png(k)), ("txt", b"a red circle"))
            ]
            for number, (name, content) in enumerate([*good, *members]):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                if number >= len(good):
                    change(info)
                file.addfile(info, io.BytesIO(content) if info.size == len(content) else None)

    return setup


def parquet(rows: Sequence[tuple[Any, Any]], **columns: str) -> Setup:
    def setup() -> None:
        import pyarrow
        from pyarrow import parquet as file

        image = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
        good = [({"bytes": png(k), "path": None}, "a red circle") for k in range(3)]
        images, texts = zip(*good, *rows, strict=True)
        file.write_table(
            pyarrow.table(
                {
                    columns.get("image", "image"): pyarrow.array(images, image),
                    columns.get("text", "text"): pyarrow.array(texts),
                }
            ),
            "data.parquet",
        )

    return setup


YAML: dict[str, str | bytes] = {
    "a bomb": "a0: &a0 [x, x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 4)}]\n" for k in range(1, 30)),
    "deep": "[" * 100_000,
    "deep mappings": "\n".join(" " * k + "a:" for k in range(3000)), "a loop": "train: &a\n  train: *a\n",
    "Python": "train: !!python/object/apply:os.system ['touch owned']",
    "a list": "- 1", "a string": "hello", "empty": "", "a date": "train:\n  steps: 2020-01-01",
    "an unknown key": "tarin: 3", "twice": "patch: [1, 1]\npatch: [1, 1]",
    "an integer of 100,000 digits": "train:\n  steps: " + "9" * 100_000, "NaN": "caption_dropout: .nan",
    "infinity": "train:\n  learning_rate: .inf", "binary": bytes(range(256)),
    "tabs": "train:\n\tsteps: 3", "another type": "train: 3", "null": "train: null", "key is a list": "? [1, 2]\n: 3",
    "key is a number": "3: 4", "a bool": "train:\n  steps: true",
    "a number as a string": "train:\n  steps: '3'", "escapes": f'"{chr(92)}e]0;x": 1',
    "unpaired surrogate": 'variant: "\\ud800"', "a merge bomb": "a: &a {b: 1}\n" + "c: {" + "<<: *a, " * 1000 + "}",
}  # fmt: skip


def data_cases() -> Iterator[Case]:
    own = ["train", "folder-dtm", *options({**SIZES, **TEXT, "data.size": 8, "data.folder": "images"}), "--out", "x"]
    for name, row in {**ROWS, **GOOD_ROWS}.items():
        good = name in GOOD_ROWS
        setup = sequence(partial(folder, [row]), partial(os.mkfifo, "images/fifo.png"))
        yield Case("data", f"train, row: {name}", own, setup=setup, expect="any" if good else "error")
        check = counted(5, 0) if good else counted(4, 1)
        yield Case("data", f"prepare, row: {name}", prepare(), setup=encoders(setup), expect="any", check=check)
    for name, content in IMAGES.items():
        setup = sequence(
            partial(folder, [{"file_name": "bad.png", "text": "x"}]),
            lambda c=content: Path("images/bad.png").write_bytes(c()),
        )
        yield Case("data", f"train, image: {name}", own, setup=setup, expect="any")
        yield Case(
            "data", f"prepare, image: {name}", prepare(), setup=encoders(setup), expect="any", check=counted(4, 1)
        )
    whole: dict[str, Setup] = {
        "no metadata": lambda: folder() or Path("images/metadata.jsonl").unlink(), "no images": partial(folder, good=0),
        "one image": partial(folder, good=1),
        "missing": lambda: None, "a file": write("images", "x"), "a FIFO": instead("images", "fifo"),
        "metadata is a FIFO": lambda: (folder(), instead("images/metadata.jsonl", "fifo")()),
        "metadata is /dev/zero": lambda: (folder(), instead("images/metadata.jsonl", "link", "/dev/zero")()),
        "metadata is a folder": lambda: (folder(), instead("images/metadata.jsonl", "folder")()),
        "names that are not UTF-8": lambda: (folder(), Path("images/metadata.jsonl").unlink(),
        Path(os.fsdecode(b"images/\xff.png")).write_bytes(png()),
        Path(os.fsdecode(b"images/\xff.txt")).write_text("x")),
        "metadata is binary": lambda: (folder(), Path("images/metadata.jsonl").write_bytes(bytes(range(256)) * 9)),
    }  # fmt: skip
    for name, setup in whole.items():
        fine = "any" if name in ("one image", "names that are not UTF-8", "no metadata") else "error"
        yield Case("data", f"train, folder: {name}", own, setup=setup, expect=fine)
        yield Case("data", f"prepare, folder: {name}", prepare(), setup=encoders(setup), expect=fine)
    bad = [("bad.png", png(9)), ("bad.txt", b"x")]
    tars: dict[str, tuple[Setup, int]] = {
        "good": (tar(*bad), 4), "a header of 2**45 bytes": (tar(("bad.png", b""), change=lambda info: setattr(info,
        "size", 2**45)), 3),
        "a link outside": (tar(*bad, change=lambda info: (setattr(info, "type", tarfile.SYMTYPE), setattr(info,
        "linkname", "../outside/secret.txt"), setattr(info, "size", 0))), 3),
        "a path outside": (tar(("../../outside/new.png", png(9)), ("../../outside/new.txt", b"x")), 4),
        "escapes": (tar((f"{ESCAPE}.png", b"x"), (f"{ESCAPE}.txt", b"x")), 3),
        "truncated": (sequence(tar(*bad), bytes_of("data.tar", lambda x: x[:-12_000])), 2), "no image": (tar(("bad.txt",
        b"x")), 3), "a device": (tar(*bad, change=lambda info: (setattr(info, "type", tarfile.CHRTYPE), setattr(info,
        "size", 0))), 3),
    }  # fmt: skip
    for name, (setup, good) in tars.items():
        yield Case(
            "data",
            f"prepare, tar: {name}",
            prepare("data.tar"),
            setup=encoders(setup),
            expect="ok",
            check=counted(good),
        )
    for name, tar_content in {
        "empty": b"",
        "gzip": b"\x1f\x8b" + bytes(100),
        "zeros": bytes(10_240),
        "noise": os.urandom(5000),
    }.items():
        yield Case("data", f"prepare, tar: {name}", prepare("data.tar"), setup=encoders(write("data.tar", tar_content)))
    for name, special in SPECIAL.items():
        for kind in ("data.tar", "data.parquet"):
            yield Case("data", f"prepare, {kind} is {name}", prepare(kind), setup=encoders(special(kind)))
    parquets: dict[str, tuple[Setup, int | None]] = {
        "good": (parquet([]), 3), "an absolute path": (lambda: parquet([({"bytes": None,
        "path": str(Path.cwd().parent / "outside/secret.txt")}, "x")])(), 3),
        "a path outside": (parquet([({"bytes": None, "path": "../outside/secret.txt"}, "x")]), 3),
        "a missing file": (parquet([({"bytes": None, "path": "nowhere.png"}, "x")]), 3),
        "nulls": (parquet([(None, "x"), ({"bytes": png(), "path": None}, None)]), 3),
        "a bomb": (parquet([({"bytes": bomb(), "path": None}, "x")]), 3), "an address": (parquet([({"bytes": None,
        "path": "http://localhost:1/x.png"}, "x")]), 3),
        "another column": (parquet([], image="png"), None), "truncated": (sequence(parquet([]),
        bytes_of("data.parquet", lambda x: x[:-99])), None), "a damaged page": (sequence(parquet([]),
        bytes_of("data.parquet", lambda x: x[:200] + os.urandom(400) + x[600:])), None),
        "empty": (write("data.parquet", ""), None), "noise": (write("data.parquet",
        b"PAR1" + os.urandom(999) + b"PAR1"), None),
    }  # fmt: skip
    for name, (setup, samples) in parquets.items():
        expect, check = (
            ("any", counted(samples)) if samples else ("any" if "page" in name else "error", lambda root, code: "")
        )
        yield Case(
            "data",
            f"prepare, parquet: {name}",
            prepare("data.parquet"),
            setup=encoders(setup),
            expect=expect,
            check=check,
        )
    for name, text in YAML.items():
        setup = write("settings.yaml", text)
        fine = "any" if name in ("a merge bomb", "a number as a string", "unpaired surrogate") else "error"
        yield Case(
            "settings", f"YAML: {name}", [*TRAIN, "--config", "settings.yaml", "--out", "x"], setup=setup, expect=fine
        )
    for name, special in SPECIAL.items():
        if name != "a FIFO":  # any program waits for its writer, which may be about to start: see the next cases
            yield Case(
                "settings",
                f"YAML file is {name}",
                ["plan", "shapes-fm", "--config", "settings.yaml"],
                setup=special("settings.yaml"),
            )
    for name, text in {"good": "caption_dropout: 0.2", "an unknown key": "tarin: 3"}.items():
        yield Case(
            "settings",
            f"YAML from a pipe: {name}",
            shell=f"$T plan shapes-fm --config <(echo '{text}')",
            expect="ok" if name == "good" else "error",
        )
    yield from shard_cases()


def shard_cases() -> Iterator[Case]:
    """Training on damaged data shards."""
    argv = [
        "train",
        "shards-fm",
        *options({**SIZES, "train.preview-every": 0}),
        "--data.folders",
        "shards",
        "--out",
        "x",
    ]

    def case(
        name: str, *setup: Setup, expect: str = "error", more: Sequence[str] = (), limits: dict[str, int] | None = None
    ) -> Case:
        return Case(
            "data",
            f"shards: {name}",
            [*argv, *more],
            setup=sequence(partial(use, "shards", "shards"), *setup),
            expect=expect,
            limits=limits or {},
        )

    shard, manifest = "shards/000000-16x16.safetensors", "shards/manifest.json"
    yield case("good", expect="ok")
    yield case("good, with a worker", more=["--data.workers", "1"], expect="ok")
    for key in ("truncated", "empty", "header of 2**60 bytes", "huge shape"):
        yield case(key, bytes_of(shard, WEIGHTS_FILES[key]))
    yield case("a flipped bit", bytes_of(shard, flipped))
    for name, special in SPECIAL.items():
        yield case(f"the shard is {name}", special(shard))
        yield case(f"the manifest is {name}", special(manifest))
    for name, content in JSON_FILES.items():
        yield case(f"manifest: {name}", write(manifest, content))
    changes: dict[str, Any] = {
        "samples 10**12": {"samples": 10**12}, "samples of a shard": {"shards__0__samples": 10**12},
        "negative samples": {"shards__0__samples": -1},
        "a file outside": {"shards__0__file": "../../outside/secret.safetensors"}, "size": {"shards__0__size": [0, 0]},
        "huge size": {"shards__0__size": [10**9, 10**9]},
        "checksum": {"shards__0__sha256": "0"}, "format": {"format": 3}, "no shards": {"shards": []},
        "channels": {"settings__autoencoder__channels": 10**9}, "width": {"settings__text__width": 10**9},
        "max_length": {"settings__text__max_length": 10**12}, "escapes": {"settings__autoencoder__name": ESCAPE},
    }  # fmt: skip
    for name, change in changes.items():
        yield case(
            f"manifest: {name}",
            edit(manifest, **change),
            expect="any" if name in ("escapes", "max_length", "samples 10**12") else "error",
        )
    yield case(
        "an absolute path",
        lambda: edit(manifest, shards__0__file=str(Path.cwd().parent / "outside/secret.safetensors"))(),
    )
    for files in (24, 40):
        yield case(
            f"two workers with {files} open files", more=["--data.workers", "2"], limits={"NOFILE": files}, expect="any"
        )
