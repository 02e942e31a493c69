"""Hostile files for fuzz.py: model folders, encoders, autoencoders, exports, checkpoints, data and settings."""

import io
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

SECRET = "kept-private-5d0a"
FINE: Callable[[Path, int], str] = lambda root, code: ""  # noqa: E731
Setup = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A command line, Python `code` or a `shell` command, and what must come out of it."""

    group: str
    name: str
    argv: Sequence[str | bytes] = ()
    code: str = ""
    shell: str = ""
    setup: Setup = lambda: None
    expect: str = "error"
    """'error', 'ok', or 'any' of both."""
    check: Callable[[Path, int], str] = FINE
    """(folder, exit code) -> what is wrong with the results."""
    limits: dict[str, int] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    """No sentence is expected, since stderr is closed."""


def plant(root: Path) -> None:
    """Files outside the folder of a case, which nothing may open."""
    for name, content in {"secret.txt": SECRET, "secret.bin": SECRET, "secret.safetensors": SECRET}.items():
        (root / "outside" / name).write_text(content)
    with Path(root / "outside" / "secret.safetensors").open("wb") as file:
        header = json.dumps(
            {"__metadata__": {"note": SECRET}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
        )
        file.write(struct.pack("<Q", len(header)) + header.encode() + b"\0\0\0\0")


def leaked(root: Path) -> str:
    """Whether a file outside was changed, or its contents copied."""
    if (root / "outside" / "secret.txt").read_text() != SECRET or len(list((root / "outside").iterdir())) != 3:
        return "a file outside the folder was changed"
    files = [file for file in (root / "work").rglob("*") if file.is_file() and not file.is_symlink()]
    found = [file for file in files if file.stat().st_size < 2**24 and SECRET.encode() in file.read_bytes()]
    return f"a secret was copied to {found[0].relative_to(root)}" if found else ""


def image_check(name: str = "x.png", count: int = 0) -> Callable[[Path, int], str]:
    """A PNG file, or a folder of `count` of them, that is not constant; required if the exit code is 0."""

    def check(root: Path, code: int) -> str:
        import numpy
        from PIL import Image

        path = root / "work" / os.fsdecode(name)
        files = sorted(path.glob("*.png")) if count else [path]
        if code == 0 and (len(files) != (count or 1) or not files[0].is_file()):
            return f"{len([file for file in files if file.is_file()])} images instead of {count or 1}"
        for file in files if code == 0 else []:
            if numpy.asarray(Image.open(file)).std(axis=(0, 1)).max() == 0:
                return f"{file.name} is constant"
        return ""

    return check


def always(check: Callable[[Path, int], str]) -> Callable[[Path, int], str]:
    """A check whose results are required whatever the exit code is."""
    return lambda root, code: check(root, 0)


# Folders that good runs made, which cases copy and damage.


def made(name: str) -> Path:
    return Path(os.environ["FIXTURES"]) / name


def use(name: str, to: str = "model") -> None:
    shutil.copytree(made(name), to, symlinks=True)


def sequence(*steps: Setup) -> Setup:
    return lambda: [step() for step in steps]


def with_run(*steps: Setup, name: str = "run") -> Setup:
    return sequence(partial(use, name), *steps)


SIZES = {
    "backbone.width": 16, "backbone.depth": 1, "backbone.heads": 2, "head.width": 16, "head.depth": 1,
    "eval-prompts": 2, "validation-images": 4, "train.batch-size": 8, "train.validate-every": 2,
    "train.preview-every": 2, "train.checkpoint-every": 1, "train.cooldown": 0, "train.warmup": 0, "train.steps": 2,
}  # fmt: skip
TEXT = {"text.width": 16, "text.heads": 2}
SHAPES = {**SIZES, **TEXT, "data.images": 40, "sampling.steps": 2}


def options(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", *str(value).split(" "))]


TRAIN = ["train", "shapes-dtm-mean", *options(SHAPES)]
CODES = {**SHAPES, "patch": "1 1", "sampling.steps": "None", "sampling.iterations": 2}
AUTOENCODER = {"data.size": 16, "width": 8, "held-out": 1, "train.steps": 1, "train.batch-size": 2, "train.warmup": 0}
GENERATE = ["generate", "a red circle", "--model", "model", "--out", "x.png"]


def png(seed: int = 0, size: tuple[int, int] = (20, 20)) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1])).save(file, "PNG")
    return file.getvalue()


def folder(rows: Sequence[dict[str, Any] | str] = (), good: int = 4, name: str = "images") -> None:
    """A folder of images, good ones and some `rows` of metadata.jsonl."""
    Path(name).mkdir(exist_ok=True)
    lines = [json.dumps({"file_name": f"{k}.png", "text": "a red circle"}) for k in range(good)]
    for k in range(good):
        (Path(name) / f"{k}.png").write_bytes(png(k))
    lines += [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (Path(name) / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")


def networks() -> None:
    """The images and the tiny encoders that other fixtures use."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from tiny import save_kl_autoencoder, save_text_encoder  # type: ignore[import-not-found]

    save_text_encoder(made("text"))
    save_kl_autoencoder(made("vae"))
    folder(name=str(made("images")))


def fixture(name: str, argv: Sequence[str] | str) -> Case:
    """A command that must succeed; {F} is the folder of all fixtures."""
    words = argv.split() if isinstance(argv, str) else argv
    where = "[word.replace('{F}', os.environ['FIXTURES']) for word in words]"
    code = f"import os; from tmatch.app.cli import main; words = {list(words)}; main({where})"
    return Case("fixtures", name, code=code, expect="ok")


ENCODERS = "--autoencoder {F}/vae --text {F}/text --size 16 --multiple 2 --smallest 4"
FIXTURES = [
    Case("fixtures", "networks", argv=["--version"], setup=networks, expect="ok"),
    fixture("run", [*TRAIN, "--out", "{F}/run"]),
    fixture("codes", ["train", "shapes-mar-discrete", *options(CODES), "--out", "{F}/codes"]),
    fixture("autoencoder", ["train", "folder-autoencoder", *options(AUTOENCODER), *["--data.folder", "{F}/images",
    "--out", "{F}/autoencoder"]]),
    fixture("own", ["train", "folder-dtm", *options({**SIZES, **TEXT, "data.size": 16}), *["--data.folder",
    "{F}/images", "--autoencoder", "{F}/autoencoder", "--out", "{F}/own"]]),
    fixture("shards", f"prepare {{F}}/images {ENCODERS} --out {{F}}/shards"),
    fixture("sharded", ["train", "shards-fm", *options(SIZES), *["--data.folders", "{F}/shards", "--out",
    "{F}/sharded"]]),
    fixture("exported", "export {F}/sharded --out {F}/exported"),
]  # fmt: skip


# Edits of files.


def write(name: str, content: str | bytes) -> Setup:
    def setup() -> None:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.exists():
            path.unlink()
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    return setup


def edit(name: str, **changes: Any) -> Setup:  # noqa: ANN401
    """Set values of a JSON file by their dotted paths (written with __); ... removes a key."""

    def setup() -> None:
        data = json.loads(Path(name).read_text())
        for path, value in changes.items():
            *parents, last = path.split("__")
            inner = data
            for key in parents:
                inner = inner[int(key) if isinstance(inner, list) else key]
            if value is ...:
                del inner[last]
            else:
                inner[int(last) if isinstance(inner, list) else last] = value
        Path(name).write_text(json.dumps(data))

    return setup


def instead(name: str, kind: str, target: str = "") -> Setup:
    """Replace a file by something else: a folder, a FIFO, a link."""

    def setup() -> None:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(target or path.name)  # a loop without a target
        elif kind == "folder":
            path.mkdir()

    return setup


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Setup:
    return lambda: Path(name).write_bytes(change(Path(name).read_bytes()))


def flipped(content: bytes) -> bytes:
    """Flip a bit in the last quarter, which in a safetensors file is a weight."""
    place = len(content) * 3 // 4
    return content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :]


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Change the header of a safetensors file."""

    def changed(content: bytes) -> bytes:
        size = struct.unpack("<Q", content[:8])[0]
        data = json.loads(content[8 : 8 + size])
        change(data)
        text = json.dumps(data).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size :]

    return changed


def first(data: dict[str, Any]) -> dict[str, Any]:
    return data[
        next(
            key
            for key in sorted(data)
            if key != "__metadata__" and data[key]["dtype"] in ("F32", "F16") and data[key]["shape"]
        )
    ]


def tensors(name: str, change: Callable[[dict[str, Any]], object]) -> Setup:
    """Change the tensors of a safetensors file."""

    def setup() -> None:
        from safetensors.torch import load_file, save_file

        data = load_file(name)
        change(data)
        save_file(data, name)

    return setup


def every(value: Callable[[Any], Any]) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.update({key: value(x) for key, x in data.items()})


def poke(value: float) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        for tensor in data.values():
            if tensor.is_floating_point() and tensor.numel():
                tensor.view(-1)[0] = value

    return change


HUGE, ESCAPE, DEEP = 10**9, "\x1b]0;owned\x07\x1b[2J", "[" * 100_000
JSON_FILES: dict[str, str | bytes] = {
    "empty": "", "not JSON": "{", "deep": DEEP, "deep object": '{"a":' * 100_000, "a number": "3", "a list": "[]",
    "null": "null",
    "UTF-16": "{}".encode("utf-16"), "binary": bytes(range(256)) * 40,
    "an integer of 100,000 digits": '{"format": ' + "9" * 100_000 + "}",
    "NaN": '{"format": NaN}', "escapes": json.dumps({ESCAPE: ESCAPE}), "raw escapes": ESCAPE,
}  # fmt: skip
WEIGHTS_FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda x: b"", "truncated": lambda x: x[: len(x) // 2], "cut by a byte": lambda x: x[:-1],
    "longer": lambda x: x + b"x",
    "header of 2**60 bytes": lambda x: struct.pack("<Q", 2**60) + x[8:],
    "header beyond the end": lambda x: struct.pack("<Q", len(x)) + x[8:],
    "header not JSON": lambda x: x[:8] + b"\xff" * 64 + x[72:],
    "a pickle": lambda x: b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.",
    "offsets beyond the end": header(lambda d: first(d).update(data_offsets=[0, 2**50])),
    "negative offsets": header(lambda d: first(d).update(data_offsets=[-8, 8])),
    "overlapping offsets": header(lambda d: first(d).update(data_offsets=[0, 4])),
    "huge shape": header(lambda d: first(d).update(shape=[2**40, 2**40])),
    "unknown dtype": header(lambda d: first(d).update(dtype="Q7")), "deep header": lambda x: struct.pack("<Q",
    100_000) + DEEP.encode(),
    "escapes in a name": header(lambda d: d.update({ESCAPE: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})),
}  # fmt: skip
SPECIAL: dict[str, Callable[[str], Setup]] = {
    "a folder": lambda name: instead(name, "folder"), "a FIFO": lambda name: instead(name, "fifo"),
    "a link to itself": lambda name: instead(name, "link"), "a dangling link": lambda name: instead(name, "link",
    "nowhere"),
    "/dev/zero": lambda name: instead(name, "link", "/dev/zero"), "missing": lambda name: instead(name, "nothing"),
}  # fmt: skip
TENSORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "NaN": poke(float("nan")), "infinity": poke(float("inf")),
    "1e38": every(lambda x: x + 1e38 if x.is_floating_point() else x),
    "one missing": lambda d: d.pop(sorted(d)[0]), "one more": lambda d: d.update(more=next(iter(d.values())).clone()),
    "transposed": every(lambda x: x.T.contiguous() if x.ndim == 2 else x), "integers": every(lambda x: x.int()),
    "booleans": every(lambda x: x.bool()), "complex": every(lambda x: x.to(__import__("torch").complex64)),
    "none": lambda d: d.clear(),
}  # fmt: skip
CONFIG: dict[str, dict[str, Any]] = {
    **{f"backbone.{k} {v}": {f"run__backbone__{k}": v} for k in ("depth", "width", "heads") for v in (HUGE, 0, 2.5,
    "four", 2**70)},
    **{f"head.{k} {v}": {f"run__head__{k}": v} for k in ("depth", "width") for v in (HUGE, -1)},
    **{f"conditioning.{k} {v}": {f"encoders__conditioning__{k}": v} for k in ("width", "depth", "heads",
    "max_length") for v in (HUGE, 0, "x")},
    **{f"shape {v}": {"shape": v} for v in ([HUGE, HUGE, 16], [0, 8, 16], [8, 8], [4, 4, 17], [2**70, 4, 16], "x")},
    **{f"sampling.{k} {v}": {f"run__sampling__{k}": v} for k, v in (("steps", 10**12), ("head_steps", 10**12), ("steps",
    -1), ("guidance", float("nan")), ("guidance", 1e400), ("guidance", 1e30), ("sampler", "ddim:nan"), ("sampler",
    "restart:1,0,1e12"), ("sampler", "restart:1"))},
    **{f"patch {v}": {"run__patch": v} for v in ([0, 0], [HUGE, 1], [3, 3], [2])},
    **{f"autoencoder {v!r}": {"encoders__autoencoder": v} for v in ("../outside", "/dev/zero", "", "none",
    "shapes-codes", "nope", ESCAPE)},
    **{f"{k} {v!r}": {k: v} for k, v in (("format", 3), ("format", "2"), ("format", -1), ("grids", [[0, 0]]), ("grids",
    "x"), ("encoders", {}), ("run", []), ("more", 1))},
    **{f"{k} {v!r}": {f"run__{k}": v} for k, v in (("variant", "nope"), ("variant", ESCAPE), ("variant", None),
    ("parametrization", "nope"), ("data__kind", "nope"), ("train__seed", 2**70), ("caption_dropout", 2))},
    **{f"vocabulary {k}": {"encoders__conditioning__vocabulary": v} for k, v in {"empty": [], "a string": "abc",
    "numbers": [1, 2], "twice": ["a", "a"], "of a million": list(map(str, range(10**6)))}.items()},
    **{f"conditioning.kind {v!r}": {"encoders__conditioning__kind": v} for v in ("nope", None, "labels", ["words"])},
    "labels of 10**12": {"encoders__conditioning": {"kind": "labels", "classes": 10**12, "width": 16}},
    "no conditioning": {"encoders__conditioning": {}}, "digest": {"encoders__digest": "0"}, "no run": {"run": ...},
    "no shape": {"shape": ...},
}  # fmt: skip


def hub_cache() -> None:
    """A model folder as the hub's cache makes it: links to blobs outside the folder."""
    use("run", "plain")
    for name in ("model.json", "model.safetensors"):
        Path("cache/blobs").mkdir(parents=True, exist_ok=True)
        Path("cache/snapshots/1").mkdir(parents=True, exist_ok=True)
        shutil.copy(f"plain/{name}", f"cache/blobs/{name}-hash")
        Path(f"cache/snapshots/1/{name}").symlink_to(f"../../blobs/{name}-hash")


def model_cases() -> Iterator[Case]:
    def case(name: str, setup: Setup, expect: str = "error", argv: Sequence[str] = GENERATE) -> Case:
        return Case("model folders", name, argv, setup=setup, expect=expect, check=image_check())

    for name in ("run", "codes", "own", "sharded", "exported"):
        yield case(f"good: {name}", with_run(name=name), "ok")
    yield case("good: links of a hub cache", hub_cache, "ok", [*GENERATE[:3], "cache/snapshots/1", *GENERATE[4:]])
    for name, content in JSON_FILES.items():
        yield case(f"model.json: {name}", with_run(write("model/model.json", content)))
    for name, change in WEIGHTS_FILES.items():
        yield case(f"weights: {name}", with_run(bytes_of("model/model.safetensors", change)))
    for name, special in SPECIAL.items():
        yield case(f"model.json: {name}", with_run(special("model/model.json")))
        yield case(f"weights: {name}", with_run(special("model/model.safetensors")), "any")  # of the checkpoint
    for name, tensor_change in TENSORS.items():
        yield case(f"weights: {name}", with_run(tensors("model/model.safetensors", tensor_change)))
    for name, changes in CONFIG.items():
        yield case(f"model.json: {name}", with_run(edit("model/model.json", **changes)))
    words = edit("model/model.json", encoders__conditioning__vocabulary__0=ESCAPE)
    yield case("model.json: escapes in the vocabulary", with_run(words), "any", ["generate", "zebra", *GENERATE[2:]])
    for command in (["evaluate", "--prompts", "2"], ["export", "--out", "x"]):
        rest = [*command[1:], "--model", "model"] if command[0] == "evaluate" else ["model", *command[1:]]
        yield case(
            f"{command[0]}: depth {HUGE}",
            with_run(edit("model/model.json", run__backbone__depth=HUGE)),
            "error",
            [command[0], *rest],
        )
        yield case(
            f"{command[0]}: NaN",
            with_run(tensors("model/model.safetensors", TENSORS["NaN"])),
            "error",
            [command[0], *rest],
        )


def index_of(*targets: str) -> Setup:
    """A text encoder whose index file names other files."""

    def setup() -> None:
        encoder = Path("model/text_encoder")
        weights = encoder / "model.safetensors"
        names = {"shared.weight": targets[0]}
        weights.unlink()
        (encoder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
        (encoder / "evil.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.")

    return setup


def not_owned(root: Path, code: int) -> str:
    return "code of the model was run" if list(root.rglob("owned")) else ""


def encoder_cases() -> Iterator[Case]:
    """Hostile text encoders and autoencoders inside the folder of a model."""

    def case(name: str, *setup: Setup, base: str = "exported", expect: str = "error") -> Case:
        return Case("encoders", name, GENERATE, setup=with_run(*setup, name=base), expect=expect, check=not_owned)

    text, vae = "model/text_encoder", "model/autoencoder"
    for target in ("evil.bin", "../../evil.bin", "../../../outside/secret.safetensors", "../../../outside/secret.bin"):
        yield case(
            f"index names {target}", index_of(target), write("evil.bin", b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.")
        )
    yield case(
        "index names an absolute path", lambda: index_of(str(Path.cwd().parent / "outside/secret.safetensors"))()
    )
    yield case("weights as a pickle", lambda: Path(f"{text}/model.safetensors").rename(f"{text}/pytorch_model.bin"))
    yield case(
        "autoencoder as a pickle",
        lambda: Path(f"{vae}/diffusion_pytorch_model.safetensors").rename(f"{vae}/diffusion_pytorch_model.bin"),
    )
    code = {"auto_map": {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}}
    evil = write(f"{text}/evil.py", "open('owned', 'w')\nclass Evil: pass\n")
    yield case(
        "remote code",
        evil,
        edit(f"{text}/config.json", **code),
        edit(f"{text}/tokenizer_config.json", **code),
        expect="any",
    )
    yield case("remote code of an unknown type", evil, edit(f"{text}/config.json", model_type="evil", **code))
    edits: dict[str, Sequence[Any]] = {
        "d_model": (HUGE, 0, "x", 2**70),
        "num_layers": (HUGE, -1),
        "vocab_size": (HUGE, 0),
        "num_heads": (0, HUGE),
        "model_type": ("nope", "vit", None),
        "d_ff": (HUGE,),
    }
    for key, values in edits.items():
        for value in values:
            yield case(f"text config: {key} {value}", edit(f"{text}/config.json", **{key: value}))
    edits = {
        "block_out_channels": ([HUGE, HUGE], [], "x"),
        "latent_channels": (HUGE, 0),
        "layers_per_block": (HUGE,),
        "_class_name": ("os.system", "UNet2DModel", ESCAPE),
        "scaling_factor": (0.0, float("nan"), "x"),
    }
    for key, values in edits.items():
        for value in values:
            yield case(f"autoencoder config: {key} {value!r}", edit(f"{vae}/config.json", **{key: value}))
    for key in ("empty", "deep", "a list", "binary", "raw escapes"):
        yield case(f"text config.json: {key}", write(f"{text}/config.json", JSON_FILES[key]))
        yield case(f"tokenizer.json: {key}", write(f"{text}/tokenizer.json", JSON_FILES[key]))
    for where, file in {
        "text": f"{text}/model.safetensors",
        "autoencoder": f"{vae}/diffusion_pytorch_model.safetensors",
    }.items():
        for key in ("truncated", "header of 2**60 bytes", "huge shape"):
            yield case(f"{where} weights: {key}", bytes_of(file, WEIGHTS_FILES[key]))
        yield case(f"{where} weights: NaN", tensors(file, TENSORS["NaN"]))
        yield case(
            f"{where} weights: a link outside", instead(file, "link", str(Path("../../../outside/secret.safetensors")))
        )
    for key, value in (
        ("width", HUGE),
        ("width", 7),
        ("blocks", HUGE),
        ("levels", [HUGE] * 8),
        ("channels", 0),
        ("channels", "x"),
    ):
        yield case(f"own autoencoder: {key} {value}", edit("model/autoencoder/recipe.json", **{key: value}), base="own")
    for key in ("truncated", "empty", "huge shape"):
        yield case(
            f"own autoencoder: {key}",
            bytes_of("model/autoencoder/autoencoder.safetensors", WEIGHTS_FILES[key]),
            base="own",
        )
    for name in ("a FIFO", "/dev/zero"):
        yield case(
            f"own autoencoder: recipe.json is {name}", SPECIAL[name]("model/autoencoder/recipe.json"), base="own"
        )


def clean(root: Path, code: int) -> str:
    """An export contains only known files, with the umask's mode and no path of the machine."""
    for file in (root / "work" / "x").rglob("*") if code == 0 else ():
        if file.is_symlink() or file.name in ("secret.txt", "notes.md"):
            return f"{file.name} was exported"
        if file.is_file() and file.stat().st_mode & 0o777 != 0o640:
            return f"{file.name} has mode {file.stat().st_mode & 0o777:o} at umask 027"
        if file.is_file() and (b"/fixtures/" in file.read_bytes() or os.fsencode(root) in file.read_bytes()):
            return f"{file.name} contains a path of this machine"
    return "no export" if code == 0 and not (root / "work" / "x" / "model.json").is_file() else ""


def export_cases() -> Iterator[Case]:
    def case(name: str, *setup: Setup, base: str = "own", expect: str = "any", out: str = "x") -> Case:
        steps = sequence(with_run(*setup, name=base), partial(os.umask, 0o027))
        return Case(
            "export",
            name,
            ["export", "model", "--out", out],
            setup=steps,
            expect=expect,
            check=clean if out == "x" else FINE,
        )

    for base in ("run", "own", "sharded", "exported", "codes"):
        yield case(f"good: {base}", base=base, expect="ok")
    for name in ("secret.txt", "autoencoder.safetensors", "recipe.json"):
        yield case(
            f"autoencoder/{name} is a link outside",
            instead(f"model/autoencoder/{name}", "link", "../../../outside/secret.txt"),
        )
    yield case("autoencoder is a link outside", instead("model/autoencoder", "link", "../../outside"))
    yield case(
        "README.md is a link outside", instead("model/README.md", "link", "../../outside/secret.txt"), base="exported"
    )
    yield case("other files in autoencoder", write("model/autoencoder/notes.md", "private"))
    yield case(
        "result.json is a link outside", instead("model/result.json", "link", "../../outside/secret.txt"), base="run"
    )
    for key in ("empty", "deep", "a list", "binary", "raw escapes"):
        yield case(f"result.json: {key}", write("model/result.json", JSON_FILES[key]), base="run")
        yield case(f"README.md: {key}", write("model/README.md", JSON_FILES[key]), base="exported")
    yield case("result.json without an interval", write("model/result.json", '{"captions_satisfied": "x"}'), base="run")
    for name, out in {
        "dangling link": "link",
        "a file": "file",
        "empty": "",
        "not empty": "model",
        "/dev/null": "/dev/null",
        "below a file": "file/x",
        "a FIFO": "fifo",
        "in /proc": "/proc/x",
        "inside the model": "model/x/y",
        "long": "x" * 300,
        "with NUL": "a\0b",
    }.items():
        made_before = (instead("link", "link", "../outside/new"), write("file", "kept"), instead("fifo", "fifo"))
        yield case(
            f"--out {name}", *made_before, base="run", out=out, expect="any" if name == "inside the model" else "error"
        )
    yield case("--push to nowhere", base="run", expect="any")


RESUME = [*TRAIN, "--train.steps", "4", "--out", "model"]
RECORDS: dict[str, Any] = {
    **{f"step {v!r}": {"step": v} for v in (1, 2.5, "two", 10**12, -1, None, True, [2], 2**70)},
    **{f"format {v!r}": {"format": v} for v in (3, "x", None, 2.5)}, "parts 5": {"parts": 5}, "parts x": {"parts": "x"},
    "no step": {"step": ...}, "settings list": {"settings": []}, "settings empty": {"settings": {}},
    "settings.train": {"settings__train": 3},
    "steps 10**12": {"settings__train__steps": 10**12}, "steps 'x'": {"settings__train__steps": "x"},
    "learning rate": {"settings__train__learning_rate": 1.0},
}  # fmt: skip


def checkpoint_cases() -> Iterator[Case]:
    """A run of two steps that is resumed to four, after something in its folder was damaged."""

    def finished(root: Path, code: int) -> str:
        return (
            "no checkpoint of step 4"
            if code == 0 and not (root / "work/model/step-00000004/ema.safetensors").is_file()
            else ""
        )

    def case(name: str, *setup: Setup, expect: str = "error", argv: Sequence[str] = RESUME) -> Case:
        return Case(
            "checkpoints", name, argv, setup=with_run(*setup), expect=expect, check=finished if argv is RESUME else FINE
        )

    newest = "model/step-00000002"
    unfinished = instead("model/model.safetensors", "nothing")
    yield case("good", expect="ok")
    yield case("good: generate from a checkpoint", unfinished, argv=GENERATE, expect="ok")
    for group in ("model", "ema", "optimizer"):
        yield case(f"{group}: a flipped bit", bytes_of(f"{newest}/{group}.safetensors", flipped))
        for name in ("truncated", "empty", "header of 2**60 bytes", "huge shape"):
            yield case(f"{group}: {name}", bytes_of(f"{newest}/{group}.safetensors", WEIGHTS_FILES[name]))
        for name in ("missing", "a folder"):
            yield case(f"{group}: {name}", SPECIAL[name](f"{newest}/{group}.safetensors"))
    for name, change in (
        ("a flipped bit", bytes_of(f"{newest}/ema.safetensors", flipped)),
        ("NaN", tensors(f"{newest}/ema.safetensors", TENSORS["NaN"])),
    ):
        yield case(f"generate from ema: {name}", unfinished, change, argv=GENERATE)
    for name, changes in RECORDS.items():
        yield case(f"record.json: {name}", edit(f"{newest}/record.json", **changes))
    for name, content in JSON_FILES.items():
        yield case(f"record.json: {name}", write(f"{newest}/record.json", content))
    for name in ("missing", "a FIFO", "a folder", "/dev/zero"):
        yield case(f"record.json: {name}", SPECIAL[name](f"{newest}/record.json"))
    yield case(".lock is a link outside", instead("model/.lock", "link", "../../outside/secret.txt"), expect="any")
    yield case(".lock is a FIFO", instead("model/.lock", "fifo"), expect="any")
    yield case(".lock is a folder", instead("model/.lock", "folder"), expect="any")
    yield case("writing is a link outside", instead("model/writing", "link", "../../outside"), expect="any")
    yield case("writing is a file", write("model/writing", "x"), expect="any")
    yield case("the checkpoint is a file", instead(newest, "nothing"), write(newest, "x"))
    yield case("a newer empty checkpoint", instead("model/step-99999999", "folder"))
    yield case("a checkpoint of step 10**30", instead(f"model/step-{10**30}", "folder"))
    yield case("the checkpoint is a link outside", instead(newest, "link", "../../outside"))
    for log in ("losses", "validation"):
        for name in ("not JSON", "a list", "binary", "deep"):
            yield case(
                f"{log}.jsonl: {name}",
                bytes_of(
                    f"model/{log}.jsonl",
                    lambda x, n=name: x + (c if isinstance(c := JSON_FILES[n], bytes) else c.encode()) + b"\n",
                ),
            )
    yield case("model.json: not JSON", write("model/model.json", "{"), expect="any")
    yield case("fewer steps", argv=[*TRAIN, "--train.steps", "1", "--out", "model"])
    yield case("another recipe", argv=["train", "shapes-fm", *RESUME[2:]])
    yield case("another batch size", argv=[*RESUME, "--train.batch-size", "4"])
    yield case(
        "an autoencoder in the folder of a generator",
        argv=["train", "shapes-autoencoder", "--data.images", "40", "--train.steps", "1", "--out", "model"],
    )

    def finite(root: Path, code: int) -> str:
        from safetensors.torch import load_file

        files = list((root / "work/model").glob("step-*/ema.safetensors"))
        return (
            "a checkpoint is not finite"
            if any(not x.isfinite().all() for file in files for x in load_file(file).values())
            else ""
        )

    for rate in ("1e30", "3e38", "1e300"):
        argv = [*TRAIN, "--train.learning-rate", rate, "--train.steps", "4", "--out", "model"]
        yield Case("checkpoints", f"diverges at {rate}", argv, check=finite)


def file_cases() -> list[Case]:
    from fuzz_data import data_cases

    return [*model_cases(), *encoder_cases(), *export_cases(), *checkpoint_cases(), *data_cases()]
