"""The command itself: what it lists, what it rejects, and what it imports."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import assert_rejected, run, succeed

import tmatch
from tmatch.app.cli import COMMANDS, main
from tmatch.app.tables import FILE, build_tables
from tmatch.recipes import RECIPES

LIGHT = """
import sys
from tmatch.app.cli import main
for arguments in (["--help"], ["--version"], ["variants"], ["recipes"], ["models"]):
    try:
        main(arguments)
    except SystemExit as exit:
        assert not exit.code
heavy = {"torch", "numpy", "transformers", "diffusers", "matplotlib"} & {*sys.modules}
assert not heavy, heavy
tmatch = sys.modules["tmatch"]
assert {*tmatch.__all__} <= {*dir(tmatch)}
from tmatch.app import evaluate, generate, plan, train
heavy = {"transformers", "diffusers", "datasets", "matplotlib", "tensorboard", "torchdiffeq", "peft"} & {*sys.modules}
assert not heavy, heavy
"""


def test_listing_commands_import_no_torch_and_no_command_imports_an_extra() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(tmatch.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = {(node.module, name.name) for node in imports for name in node.names if "tmatch" in str(node.module)}
    assert {(module, name) for name, module in tmatch._HOME.items()} == typed
    assert all(getattr(tmatch, name) is not None for name in tmatch.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tmatch.Nothing  # noqa: B018


def test_the_packaged_tables_are_those_of_the_code() -> None:
    assert json.loads(FILE.read_text()) == build_tables(), "run `make tables`"


def test_lists_name_everything_within_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert all(name in succeed("--help").stdout for name in COMMANDS)
    assert succeed().stdout == succeed("--help").stdout
    assert succeed("--version").stdout.split()[-1] == tmatch.__version__
    for command, names in (("variants", tmatch.VARIANTS), ("recipes", RECIPES), ("models", ["shapes-fm"])):
        text = succeed(command).stdout
        assert all(name in text for name in names)
        assert max(map(len, text.splitlines())) <= 80
        assert len(json.loads(succeed(command, "--json").stdout)) >= len(names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["varants"], ["no command 'varants' (did you mean 'variants'?)"]),
        (["train"], ["name a recipe first"]),
        (["train", "shapes-autoencodr"], ["no recipe 'shapes-autoencodr' (did you mean 'shapes-autoencoder'?)"]),
        (["train", "shapes-dtm"], ["--out"]),
        (["train", "shapes-dtm", "--out", "x", "--train.step", "5"], ["--train.steps"]),
        (["train", "shapes-dtm", "--out", "x", "--train.steps", "0"], ["--train.steps: ", "greater than 0, got 0"]),
        (["train", "shapes-dtm", "--out", "x", "--data.images", "0"], ["--data.images: ", "greater than 0"]),
        (["train", "shapes-fm", "--out", "x", "--sampling.top-k", "3", "--data.images", "9"], ["top-k has no"]),
        (["train", "folder-autoencoder", "--out", "x", "--data.kind", "shards"], ["trains on images"]),
        (["train", "shapes-dtm", "--out", "x", "--sampling.solver", "hein"], ["--sampling.solver: ", "'heun'?"]),
        (["train", "shapes-dtm", "--out", "x", "--sampling.sampler", "heun"], ["needs a kernel that predicts a mean"]),
        (["train", "shapes-dtm", "--out", "x", "--patch", "0", "1"], ["--patch.0: ", "greater than 0, got 0"]),
        (["train", "shapes-dtm", "--out", "x", "--backbone.width", "130", "--data.images", "9"], ["130"]),
        (["train", "shapes-dtm", "--out", "x", "--autoencoder", "nowhere", "--data.images", "9"], ["nowhere"]),
        (["train", "shapes-dtm", "--out", "/proc/nowhere/run", "--data.images", "9"], ["/proc/nowhere"]),
        (["train", "shapes-dtm", "--out", "x", "--config", "none.yaml"], ["none.yaml"]),
        (["train", "folder-dtm", "--out", "x", "--data.folder", "nowhere"], ["folder nowhere"]),
        (["train", "shapes-dtm", "--out", "", "--data.images", "9"], ["--out", "path is empty"]),
        (["train", "shapes-dtm", "--out", "x", "--autoencoder", "", "--data.images", "9"], ["--autoencoder: "]),
        (["train", "shapes-dtm", "--out", "x", "--init.model", "", "--data.images", "9"], ["--init.model: "]),
        (["train", "folder-dtm", "--out", "x", "--data.folder", ""], ["--data.folder", "path is empty"]),
        (["train", "shapes-dtm", "--out", "x", "--config", ""], ["--config"]),
        (["prepare", "", "--out", "x"], ["path is empty"]),
        (["prepare", "./loop", "--out", "x"], ["no file or folder ./loop"]),
        (["prepare", "images", "--out", ""], ["--out", "path is empty"]),
        (["export", "shapes-fm", "--out", ""], ["--out", "path is empty"]),
        (["generate", "a circle", "--out", ""], ["--out", "path is empty"]),
        (["train", "shapes-dtm", "--out", "x", "--train.batch-size", f"{10**12}"], ["--train.batch-size: "]),
        (["train", "shapes-dtm", "--out", "x", "--backbone.depth", f"{10**9}"], ["--backbone.depth: "]),
        (["train", "shapes-autoencoder", "--out", "x", "--blocks", f"{10**9}"], ["--blocks: "]),
        (["generate", "a circle", "--steps", f"{10**9}"], ["--steps: "]),
        (["generate", "a circle", "--images", f"{2**70}"], ["number of images"]),
        (["evaluate", "--prompts", f"{10**12}"], ["number of prompts"]),
        (["plan", "dtm-s", "--assumed.text-width", f"{10**22}"], ["--assumed.text-width"]),
        (["generate"], ["Give a prompt"]),
        (["generate", ""], ["prompt is empty"]),
        (["generate", "a \udcff circle"], ["'a \\udcff circle'"]),
        (["generate", "a circle", "--out", "x.jpg"], ["--out x.png"]),
        (["generate", "a circle", "--out", "/proc/nowhere/x.png"], ["/proc/nowhere"]),
        (["generate", "a circle", "--model", "owner/name"], ["no model 'owner/name'", "hf:owner/name"]),
        (["generate", "a circle", "--prompt-file", "bytes.txt"], ["UTF-8"]),
        (["generate", "a circle", "--images", "0"], ["got 0"]),
        (["evaluate", "--prompts", "0"], ["got 0"]),
        (["tune"], ["MODEL"]),
        (["tune", "shapes-fmm"], ["no model 'shapes-fmm' (did you mean 'shapes-fm'?)"]),
        (["tune", "shapes-fm", "--fast", "0"], ["--fast must be", "got 0"]),
        (["tune", "shapes-fm", "--balanced", "2"], ["--fast, --balanced, --best", "ascend"]),
        (["tune", "shapes-fm", "--prompts", "0"], ["number of prompts", "got 0"]),
        (["tune", "shapes-fm", "--metric", "caption"], ["no metric 'caption' (did you mean 'captions'?)"]),
        (["generate", "a circle", "--preset", "fastest"], ["'fastest' (did you mean 'fast'?)", "`tmatch tune`"]),
        (["plan", "dtm-ss"], ["no recipe 'dtm-ss' (did you mean 'dtm-s'?)"]),
        (["plan", "dtm-s", "--gpus", "3"], ["--train.batch-size"]),
        (["plan", "dtm-s", "--utilisation.training", "2"], ["utilisation"]),
        (["plan", "shapes-autoencoder"], ["plans generators"]),
    ],
    ids=lambda value: " ".join(value[:6]) if isinstance(value, list) else None,
)  # fmt: skip
def test_invalid_requests_are_rejected(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe circle")
    (tmp_path / "loop").symlink_to("loop")
    assert_rejected(run(*arguments, cwd=tmp_path), *words)


def test_a_working_folder_that_is_gone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit):
        main(["models"])
    assert "working folder no longer exists" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "resumes"), [("prepare", True), ("tune", True), ("evaluate", False)])
def test_an_interrupted_command_says_whether_it_resumes(
    command: str, resumes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"tmatch.app.{command}.main", interrupted)
    done = run(command)
    assert done.returncode == 130
    assert ("rerun the same command" in done.stderr) == resumes
