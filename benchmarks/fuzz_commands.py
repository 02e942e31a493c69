"""Hostile command lines for fuzz.py: numbers, prompts, output paths, resource limits, closed and full outputs."""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fuzz_data import encoders, prepare
from fuzz_files import (
    AUTOENCODER,
    CODES,
    ESCAPE,
    SHAPES,
    SIZES,
    TRAIN,
    Case,
    Setup,
    always,
    folder,
    image_check,
    instead,
    options,
    sequence,
    use,
    write,
)  # fmt: skip

VALUES = ["0", "-1", "nan", "inf", "1e30", str(2**70), str(10**12), "", "abc"]
MORE = ["-inf", "1e-320", "0x10", "1_0", "٣", "1.5", " 1", "1e400", "-0", "None", "true"]
WHOLE, REAL = ["0", "-1", str(2**70), str(10**12)], ["-1", "nan", "inf", "1e30"]
_ENDLESS = (
    "guidance temperature top-k checkpoint-every validate-every preview-every warmup weight-decay max-grad-norm kl "
)
FINE = {
    "0": "seed guidance temperature warmup cooldown weight-decay betas ema-decay validate-every preview-every "
    "caption-dropout text.depth init.lora kl data.workers utilisation",
    "-1": "seed guidance",
    "1e30": "guidance temperature weight-decay learning-rate max-grad-norm kl ratio utilisation",
    str(10**12): f"{_ENDLESS} seed learning-rate data.window ratio smallest gpus chunk batch-size held-out utilisation",
    str(2**70): f"{_ENDLESS} learning-rate",
}
"""Options for which a value may be meant: success is accepted, with results that can be verified."""


def numeric(command: Sequence[str]) -> list[tuple[str, str]]:
    """The numeric options of a command and their type, from its help."""
    from tmatch.app.cli import main

    os.environ["COLUMNS"] = "200"
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main([*command, "--help"])
    os.environ["COLUMNS"] = "100"
    return re.findall(r"--(\S+) ((?:\S*(?:INT|FLOAT)\S* ?)+)", text.getvalue())


def allowed(option: str, value: str) -> bool:
    return any(option.endswith(name) or option.startswith(name) for name in FINE.get(value, "").split())


def number_cases() -> Iterator[Case]:
    tables: list[tuple[list[str], list[str], Setup, str]] = [
        (["generate"], ["generate", "a red circle", "--out", "x.png"], lambda: None, r"(?!iterations|conf|temp|top)"),
        (["generate"], ["generate", "a red circle", "--out", "x.png", "--model", "model"], partial(use, "codes"),
        r"iterations|conf|temp|top"),
        (["evaluate"], ["evaluate", "--prompts", "2", "--steps", "2"], lambda: None,
        r"prompts|steps|head-steps|guidance"),
        (["train", "shapes-dtm-mean"], [*TRAIN, "--out", "x"], lambda: None, r"(?!sampling.(iter|conf|temp|top))"),
        (["train", "shapes-mar-discrete"], ["train", "shapes-mar-discrete", *options(CODES), "--out", "x"],
        lambda: None, r"sampling.(iter|conf|temp|top)"),
        (["train", "folder-autoencoder"], ["train", "folder-autoencoder", *options({**AUTOENCODER,
        "data.folder": "images"}), "--out", "x"], folder, r"(?!train)"),
        (["train", "shards-fm"], ["train", "shards-fm", *options(SIZES), "--data.folders", "shards", "--out", "x"],
        partial(use, "shards", "shards"), r"data"),
        (["plan", "shapes-dtm-mean"], ["plan", "shapes-dtm-mean", *options(SHAPES)], lambda: None,
        r"gpus|utilisation|train.(batch|steps)|backbone|sampling.(head-)?steps"),
        (["plan", "shards-fm"], ["plan", "shards-fm"], lambda: None, r"assumed"),
        (["prepare"], prepare(), encoders(folder), r""),
    ]  # fmt: skip
    for command, argv, setup, pattern in tables:
        check = image_check() if command == ["generate"] else lambda root, code: ""
        group = f"numbers: {command[0]}"
        yield Case(
            group, f"{' '.join(command)} (good, {pattern or 'all'})", argv, setup=setup, expect="ok", check=check
        )
        found = [(option, kind) for option, kind in numeric(command) if re.match(pattern, option)]
        assert found, command
        for place, (option, kind) in enumerate(found):
            some = [*(WHOLE if "INT" in kind else REAL), VALUES[(2, 3, 4, 7, 8)[place % 5]]]
            for value in VALUES if command == ["generate"] else dict.fromkeys(some):
                arity = 2 if kind.count("INT") + kind.count("FLOAT") == 2 and "[" not in kind else 1
                expect = "any" if allowed(option, value) else "error"
                more = [f"--{option}", value] if arity == 1 else [f"--{option}", value, value]
                yield Case(
                    group,
                    f"{' '.join(command)} --{option} {value!r}",
                    [*argv, *more],
                    setup=setup,
                    expect=expect,
                    check=check,
                )
    for value in MORE:
        yield Case(
            "numbers: generate",
            f"--steps {value!r}",
            ["generate", "a red circle", "--out", "x.png", "--steps", value],
            expect="any",
            check=image_check(),
        )
        yield Case(
            "numbers: generate",
            f"--guidance {value!r}",
            ["generate", "a red circle", "--out", "x.png", "--guidance", value],
            expect="any",
            check=image_check(),
        )
    for sampler in (
        "ddim:nan",
        "ddim:inf",
        "ddim:",
        "ddim:2",
        "restart:1",
        "restart:1,0,1e12",
        "restart:nan,nan,nan",
        "restart:1,0,-1",
        "restart:1,0,1.5",
        "restart:0.5,0.5,1",
        "overshoot:2",
        "overshoot:nan",
        "overshoot:0,0,0",
        "sde:-1",
        "sde:1e30",
        "sde:1,-1",
        "ab2:3",
        "adaptive:0",
        "adaptive:nan",
        "adaptive:-1",
        "nope",
        "",
        ESCAPE,
    ):
        yield Case(
            "numbers: generate",
            f"--sampler {sampler!r}",
            ["generate", "a red circle", "--out", "x.png", "--sampler", sampler],
            expect="any" if sampler in ("ddim:", "restart:1,0,1.5") else "error",
        )
    for grid in ("shifted:0", "shifted:-1", "shifted:nan", "power:0", "power:1e5", "karras:0",
                 "karras:nan", "exponential:2", "resolution:2", "uniform:1", "nope", "", ESCAPE):  # fmt: skip
        yield Case(
            "numbers: generate",
            f"--grid {grid!r}",
            ["generate", "a red circle", "--out", "x.png", "--grid", grid],
        )


PROMPTS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "error"), "blank": (" \t\n", "error"), "of a million characters": ("red " * 30_000, "ok"),
    "escapes": (f"a red circle {ESCAPE}", "ok"), "only escapes": (ESCAPE, "any"),
    "C1 controls": ("a \x9b31m red circle", "ok"), "carriage return": ("a red\rcircle", "ok"),
    "newlines": ("a red\n\n\ncircle", "ok"), "emoji": ("a red circle \U0001f600\U0001f468\u200d\U0001f469", "ok"),
    "not UTF-8": (b"a red \xff circle", "error"),
    "half of an emoji": (b"a \xed\xa0\x80 circle", "error"), "right to left": ("\u202eelcric der a", "ok"),
    "combining characters": ("a" + "\u0301" * 2000, "ok"), "bell and NUL-like": ("\x01\x02\x07\x08 circle", "ok"),
    "percent": ("%s %d {0} {x!r} $(touch owned) `id`", "ok"),
    "markup": ("[bold red]a circle[/bold red] [/]", "ok"), "like an option": ("--", "any"),
    "like an option with a value": ("--steps=3", "any"), "one long word": ("x" * 100_000, "ok"),
    "500 words": ("circle " * 500, "ok"),
}  # fmt: skip
FILES: dict[str, tuple[Setup, str]] = {
    "binary": (write("p.txt", bytes(range(256))), "error"), "empty": (write("p.txt", ""), "error"),
    "blank lines": (write("p.txt", "\n \n\t\n"), "error"), "UTF-16": (write("p.txt", "a red circle\n".encode("utf-16")),
    "error"), "BOM": (write("p.txt", b"\xef\xbb\xbfa red circle\n"), "ok"),
    "CRLF": (write("p.txt", "a red circle\r\na blue square\r\n"), "ok"), "NUL": (write("p.txt", "a red\0circle\n"),
    "ok"), "escapes": (write("p.txt", f"a {ESCAPE}circle\n"), "ok"), "a line of 10 MB": (write("p.txt",
    "red " * 2_500_000), "any"), "no newline": (write("p.txt", "a red circle"), "ok"),
    "surrogates": (write("p.txt", b"a \xed\xa0\x80 circle"), "error"), "form feed": (write("p.txt",
    "a red circle\x0ca blue square\x1da\u2028b\n"), "ok"), "10 million lines": (write("p.txt", "a\n" * 10_000_000),
    "any"), "200,000 blank lines": (write("p.txt", "\n" * 200_000 + "a red circle"), "ok"),
    "a folder": (instead("p.txt", "folder"), "error"),
    "missing": (lambda: None, "error"), "a loop": (instead("p.txt", "link"), "error"), "/dev/zero": (instead("p.txt",
    "link", "/dev/zero"), "error"), "/dev/null": (instead("p.txt", "link", "/dev/null"), "error"),
}  # fmt: skip


def prompt_cases() -> Iterator[Case]:
    base = ["--steps", "2", "--out", "x.png"]
    for name, (prompt, expect) in PROMPTS.items():
        yield Case("prompts", name, ["generate", prompt, *base], expect=expect, check=image_check())
        if not name.startswith("like an option"):
            yield Case(
                "prompts",
                f"{name}, and another",
                ["generate", "a red circle", prompt, *base],
                expect=expect,
                check=image_check(),
            )
        yield Case(
            "prompts",
            f"--negative: {name}",
            ["generate", "a red circle", "--negative", prompt, *base],
            expect="any" if expect == "ok" or name in ("empty", "blank") else expect,
            check=image_check(),
        )
    for name, (setup, expect) in FILES.items():
        yield Case(
            "prompts",
            f"--prompt-file: {name}",
            ["generate", "--prompt-file", "p.txt", *base],
            setup=setup,
            expect=expect,
            check=image_check(),
        )
    yield Case(
        "prompts",
        "--prompt-file from a pipe",
        shell=f"$T generate {' '.join(base)} --prompt-file <(echo a red circle)",
        expect="ok",
        check=image_check(),
    )
    yield Case(
        "prompts",
        "escapes, with a pretrained encoder",
        ["generate", f"a {ESCAPE}", *base, "--model", "model"],
        setup=partial(use, "exported"),
        expect="ok",
        check=image_check(),
    )
    yield Case(
        "prompts",
        "long, with a pretrained encoder",
        ["generate", "red " * 30_000, *base, "--model", "model"],
        setup=partial(use, "exported"),
        expect="ok",
        check=image_check(),
    )
    for model in (
        "nope",
        "",
        "/",
        ".",
        "..",
        "hf:",
        "hf:a/b",
        "hf:../x",
        "\0",
        "x" * 5000,
        ESCAPE,
        "~/x",
        "/dev/null",
        "shapes-fm/",
        "../shapes-fm",
        b"\xff",
    ):
        for command in (["generate", "a red circle", "--model", model, *base], ["export", model, "--out", "x"]):
            yield Case("prompts", f"{command[0]}: model {model[:20]!r}", command)


def out_cases() -> Iterator[Case]:
    """Odd --out of each command that has one."""
    before = sequence(instead("link", "link", "nowhere/x"), instead("link.png", "link", "nowhere.png"),
    instead("out.png", "link", "../outside/secret.txt"), write("file", "kept"), write("full/kept", "x"), instead("fifo",
    "fifo"), instead("fifo.png", "fifo"), instead("folder.png", "folder"))  # fmt: skip
    outs = ["", "link", "link.png", "out.png", "file", "file/x.png", "full", "fifo", "fifo.png", "folder.png",
    "/dev/null", "/dev/full", "/dev/null/x", "/proc/x", "/proc/x.png", "a\0b", "x" * 300, "x" * 300 + ".png", ".", "..",
    "~", "x.jpg", "x.PNG", "-", b"\xff.png", b"\xff", "é\U0001f600.png", f"{ESCAPE}.png", "a/b/c/d/e.png",
    "x y\nz.png"]  # fmt: skip

    def kept(root: Path, code: int) -> str:
        if (root / "work/file").read_text() != "kept" or (root / "work/full/kept").read_text() != "x":
            return "an existing file was overwritten"
        return ""

    commands = {
        "generate": ["generate", "a red circle", "--steps", "2"],
        "train": TRAIN,
        "prepare": prepare("full/images")[:-2],
    }
    for name, argv in commands.items():
        for out in outs:
            setup = sequence(before, encoders(partial(folder, name="full/images"))) if name == "prepare" else before
            bad = (
                out in ("", "file/x.png", "fifo", "/dev/null/x", "/proc/x", "/proc/x.png", "a\0b", "x.jpg")
                if name == "generate"
                else out
                in (
                    "",
                    "file",
                    "file/x.png",
                    "fifo",
                    "fifo.png",
                    "/dev/null",
                    "/dev/full",
                    "/dev/null/x",
                    "/proc/x",
                    "a\0b",
                    "x" * 300,
                )
            )
            yield Case(
                "output paths",
                f"{name} --out {out!r:.40}",
                [*argv, "--out", out],
                setup=setup,
                expect="error" if bad else "any",
                check=kept,
            )
    for name, argv in {"x.png": [], "x": ["--images", "3"]}.items():
        check = image_check(name, 3 if argv else 0)
        yield Case(
            "output paths",
            f"generate into {name}",
            ["generate", "a red circle", "--steps", "2", "--out", name, *argv],
            expect="ok",
            check=check,
        )
    yield Case(
        "output paths",
        "generate --path",
        ["generate", "a red circle", "--steps", "2", "--out", "x.png", "--path"],
        expect="ok",
        check=image_check("x-path.png"),
    )


def limit_cases() -> Iterator[Case]:
    """Resource limits: memory, open files, file sizes."""
    generate = ["generate", "a red circle", "a blue square", "--steps", "2", "--out", "x.png"]
    commands: dict[str, tuple[list[str], Setup]] = {
        "generate": (generate, lambda: None), "generate into a folder": ([*generate[:-1], "x"], lambda: None),
        "train": ([*TRAIN, "--out", "x"], lambda: None), "evaluate": (["evaluate", "--prompts", "2", "--steps", "2"],
        lambda: None),
        "prepare": (prepare(), encoders(folder)), "export": (["export", "shapes-fm", "--out", "x"], lambda: None),
        "plan": (["plan", "shapes-fm"], lambda: None),
    }  # fmt: skip
    for name, (argv, setup) in commands.items():
        for limits in ({"FSIZE": 2000}, {"FSIZE": 100_000}, {"NOFILE": 8}, {"NOFILE": 16}, {"AS": -(2**20)}):
            ((kind, value),) = limits.items()
            if (name, kind) == ("plan", "AS"):  # known: without memory for a thread, PyTorch waits for it forever
                continue
            shown = (
                image_check("x", 2)
                if argv[-1] == "x" and name.startswith("generate")
                else image_check()
                if name == "generate"
                else lambda root, code: ""
            )
            yield Case(
                "resource limits",
                f"{name}: {kind} {value}",
                argv,
                setup=setup,
                limits=limits,
                expect="any",
                check=shown,
            )
    for mib in (30, 100, 300):
        for name in ("generate", "train", "prepare"):
            argv, setup = commands[name]
            yield Case(
                "resource limits",
                f"{name}: {mib} MiB more memory",
                argv,
                setup=setup,
                limits={"AS": -mib * 2**20},
                expect="any",
            )
    big = {"generate": [*generate, "--images", "100000"], "train": [*TRAIN, "--backbone.width", "65536",
    "--backbone.heads", "64", "--out", "x"], "height": [*generate, "--height", str(2**20)], "width": [*generate,
    "--width", str(2**40)], "prompts": ["evaluate", "--prompts", "100000000"], "head-steps": [*generate, "--head-steps",
    "100000000"]}  # fmt: skip
    for name, argv in big.items():
        yield Case("resource limits", f"too much for the memory: {name}", argv, expect="error")
    environments = {"WORLD_SIZE": "abc", "RANK": "-1", "LOCAL_RANK": "99", "TMATCH_CACHE": "/dev/null",
    "HOME": "/nowhere", "COLUMNS": "0", "TMPDIR": "/nowhere", "OMP_NUM_THREADS": "abc"}  # fmt: skip
    for key, value in environments.items():
        for name in ("generate", "train"):
            yield Case("resource limits", f"{name}: {key}={value}", commands[name][0], env={key: value}, expect="any")
    yield Case(
        "resource limits",
        "train: WORLD_SIZE=2 alone",
        commands["train"][0],
        env={"WORLD_SIZE": "2", "RANK": "0"},
        expect="error",
    )


def output_cases() -> Iterator[Case]:
    """Closed, full and odd outputs of whole processes."""
    one = "$T generate 'a red circle' --steps 2 --out x.png"
    many = "printf 'a red circle\\n%.0s' $(seq 300) > p.txt; $T generate --prompt-file p.txt --steps 1 --out x"
    image = always(image_check())
    for name, redirect in {
        "stdin closed": "<&-",
        "stdout closed": ">&-",
        "stderr closed": "2>&-",
        "both closed": ">&- 2>&-",
        "all closed": "<&- >&- 2>&-",
        "stdout full": ">/dev/full",
        "stderr full": "2>/dev/full",
        "both full": ">/dev/full 2>&1",
    }.items():
        yield Case(
            "outputs",
            f"generate, {name}",
            shell=f"{one} {redirect}",
            expect="any",
            check=image,
            silent="stderr" in name or "both" in name or "all" in name,
        )
    yield Case(
        "outputs",
        "generate 300 | head -1",
        shell=f"{many} | head -1",
        expect="any",
        check=always(image_check("x", 300)),
    )
    yield Case("outputs", "generate | true", shell=f"{one} | true", expect="any", check=image)
    yield Case(
        "outputs",
        "generate, stderr | true",
        shell="$T generate 'a zebra' --steps 2 --out x.png 2>&1 >/dev/null | true",
        expect="any",
        check=image,
    )
    for name, env in {
        "C": "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0",
        "ASCII": "PYTHONIOENCODING=ascii",
        "Latin-1": "PYTHONIOENCODING=latin-1",
        "strict ASCII": "PYTHONIOENCODING=ascii:strict",
    }.items():
        yield Case(
            "outputs",
            f"generate ö, {name}",
            shell=f"export {env}; $T generate 'ein größer circle \U0001f600' --steps 2 --out x.png",
            expect="any" if name == "C" else "ok",
            check=image if name != "C" else image_check(),
        )
        yield Case(
            "outputs",
            f"generate into ö, {name}",
            shell=f"export {env}; $T generate 'a red circle' --steps 2 --out ö.png",
            expect="any",
        )
        yield Case("outputs", f"variants, {name}", shell=f"export {env}; $T variants", expect="ok")
        yield Case("outputs", f"help, {name}", shell=f"export {env}; $T generate --help", expect="ok")
    for command in (
        "--help",
        "variants",
        "recipes",
        "models",
        "models --json",
        "--version",
        "generate --help",
        "plan shapes-fm --json",
        "evaluate --prompts 1 --steps 1",
    ):
        yield Case("outputs", f"{command} > /dev/full", shell=f"$T {command} >/dev/full")
        yield Case("outputs", f"{command} | true", shell=f"$T {command} | true", expect="any", silent=True)
        yield Case("outputs", f"{command} >&-", shell=f"$T {command} >&-", expect="any")
    for command in (
        "nope",
        "generate",
        "train",
        "train nope --out x",
        "plan",
        "export",
        "prepare",
        "prepare x",
        "models nope",
        "--nope",
        "generate --nope",
        "'' ''",
        "train shapes-fm",
        "evaluate --split nope",
        "evaluate --metrics nope",
        "export shapes-fm",
        "train paper-fm --out x",
        "tune",
        "tune nope",
        "tune hf:a/b",
        "tune shapes-fm --fast 0",
        "tune shapes-fm --fast 8 --balanced 4",
        "tune shapes-fm --metric nope",
        "tune shapes-fm --prompts 1000000000000",
        "generate 'a red circle' --preset nope",
        "generate 'a red circle' --model shapes-artm-3 --sampler overshoot:0.5",
        "generate 'a red circle' --model shapes-artm-3 --sampler ab2",
        "generate 'a red circle' --model shapes-artm-3 --grid uniform",
        "generate 'a red circle' --model shapes-fm --solver ab2",
    ):
        yield Case("outputs", f"usage: {command}", shell=f"$T {command}")
    yield Case("outputs", "no command", shell="$T", expect="ok")
    yield Case(
        "outputs",
        "a closed working folder",
        shell="mkdir gone; cd gone; rmdir ../gone; $T generate 'a red circle' --steps 1",
        expect="any",
    )
    yield Case(
        "outputs",
        "SIGINT during generate",
        shell="timeout -s INT 4 $T generate 'a red circle' --images 3000 --out x",
        expect="error",
    )
    yield Case(
        "outputs",
        "SIGTERM during generate",
        shell="timeout -s TERM 4 $T generate 'a red circle' --images 3000 --out x",
        expect="error",
        silent=True,
    )
    yield Case("outputs", "a terminal of width 1", shell="COLUMNS=1 $T recipes", expect="ok")
    yield Case("outputs", "python -W error", shell="${T/-m/-W error -m} models", expect="ok")
    yield Case(
        "outputs",
        "python -O",
        shell="${T/-m/-OO -m} generate 'a red circle' --steps 1 --out x.png",
        expect="ok",
        check=image,
    )
    yield Case("outputs", "two generate into one folder", shell=f"{many} & {many}; wait", expect="any")


def command_cases() -> list[Case]:
    return [*number_cases(), *prompt_cases(), *out_cases(), *limit_cases(), *output_cases()]
