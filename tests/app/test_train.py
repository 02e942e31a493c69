"""`tmatch train` and `tmatch plan`."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from commands import SMALL, assert_rejected, run, succeed

from tmatch.app.overrides import as_file, with_file
from tmatch.datasets.images import _keep_autoencoder
from tmatch.recipes import RECIPES
from tmatch.train import checkpoint

TRAIN = ["train", "shapes-dtm", *SMALL, "--out"]


@pytest.fixture
def started(model: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, which a test may continue or damage."""
    return Path(shutil.copytree(model, tmp_path / "run"))


def test_a_run_resumes_and_keeps_its_configuration(started: Path) -> None:
    succeed(*TRAIN, str(started), "--train.steps", "6")
    steps = [json.loads(line)["step"] for line in (started / "losses.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert json.loads((started / "model.json").read_text())["run"]["backbone"]["width"] == 16


def test_damaged_checkpoints_and_other_settings_are_rejected(started: Path) -> None:
    assert_rejected(run(*TRAIN, str(started), "--train.steps", "6", "--backbone.depth", "2"), "backbone.depth")
    weights = started / "step-00000004" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert_rejected(run(*TRAIN, str(started), "--train.steps", "6"), "damaged")


@pytest.mark.parametrize("limit", [200, 8192])
def test_a_full_disk_loses_nothing(limit: int, started: Path) -> None:
    """A limit on the size of files stands in for a full disk; what was saved before stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        done = run(*TRAIN, str(started), "--train.steps", "6")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_rejected(done, "File too large", "resume")
    assert json.loads((started / "model.json").read_text())["shape"] == [4, 4, 16]
    succeed(*TRAIN, str(started), "--train.steps", "6")


def test_ctrl_c_saves_the_last_step(tmp_path: Path) -> None:
    over = threading.Event()

    def interrupt() -> None:
        while not list(tmp_path.glob("step-*")) and not over.is_set():
            time.sleep(0.02)
        if not over.is_set():
            signal.raise_signal(signal.SIGINT)

    (thread := threading.Thread(target=interrupt)).start()
    try:
        done = run(*TRAIN, str(tmp_path), "--train.steps", "100000")
    finally:
        over.set()
        thread.join()
    assert done.returncode == 130
    assert "rerun the same command to resume" in done.stderr
    last = len((tmp_path / "losses.jsonl").read_text().splitlines())
    assert (tmp_path / f"step-{last:08d}" / "record.json").exists(), "the last step is in the checkpoint"


@pytest.mark.parametrize("mine", ["result.json", "writing/notes.json", "writing/part/novel.txt"])
@pytest.mark.parametrize("recipe", ["shapes-dtm", "shapes-autoencoder"])
def test_training_overwrites_no_files_of_others(recipe: str, mine: str, tmp_path: Path) -> None:
    (file := tmp_path / "run" / mine).parent.mkdir(parents=True)
    file.write_text("mine")
    assert_rejected(run("train", recipe, "--out", "run", cwd=tmp_path), "/".join(mine.split("/")[:2]))
    assert [found for found in (tmp_path / "run").rglob("*") if found.is_file()] == [file]
    assert_rejected(run("train", recipe, "--out", f"run/{mine}", cwd=tmp_path), "is a file")


def test_a_folder_named_autoencoder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "autoencoder").mkdir()
    for name in ("recipe.json", "autoencoder.safetensors", "losses.jsonl"):
        (tmp_path / "autoencoder" / name).write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        _keep_autoencoder(str(tmp_path / "autoencoder"), tmp_path)
    assert len(list((tmp_path / "autoencoder").iterdir())) == 3


def test_a_run_starts_beside_its_log_and_a_truncated_first_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "writing").mkdir()
    (tmp_path / "writing" / "ema.safetensors").write_text("half of a checkpoint")
    for name in ("losses.jsonl", "log.txt"):
        (tmp_path / name).write_text("")
    succeed(*TRAIN, str(tmp_path), "--train.steps", "2")


def test_a_file_overrides_the_recipe_and_options_override_the_file(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        "train: {steps: 2, batch_size: 4, learning_rate: 2e-4}\nwidth: 8\ndata:\n  images: 30\nheld_out: 2\n"
    )
    succeed("train", "--config", "my.yaml", "shapes-autoencoder", "--data.images=20", "--out", "run", cwd=tmp_path)
    settings = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (settings["width"], settings["train"]["steps"], settings["data"]["images"]) == (8, 2, 20)
    assert settings["train"]["learning_rate"] == 2e-4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {step: 2}", "did you mean 'train.steps'?"),
        ("width: wide", "--width: Input should be a valid integer"),
        ("train: {seed: 2001-01-01}", "type date"),
        ("[1, 2]", "has no settings"),
        ("a: [", "is not valid YAML"),
        ("width: 8\ntrain: {steps: 2}\nwidth: 16", "'width' is set twice, again in line 3"),
        ("train: &a {steps: 2}\ndata: *a", "aliases"),
        ("train: " + "[" * 100_000, "is not valid YAML"),
        ("train: {steps: " + "9" * 6000 + "}", "is not valid YAML"),
        ("#" * 2**21, "larger than"),
        ("data: {kind: folder, folder: ''}", "path is empty"),
        ("recipe: {train: {steps: 2}}\ntrain: {steps: 5}", "no setting 'recipe'"),
    ],
)
def test_invalid_files_are_rejected(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(text)
    done = run("train", "shapes-autoencoder", "--out", "run", "--config=my.yaml", cwd=tmp_path)
    assert_rejected(done, words)
    assert not (tmp_path / "run").exists()


def test_the_settings_of_a_run_serve_as_a_file(model: Path, tmp_path: Path) -> None:
    succeed("train", "shapes-dtm", "--out", "x", "--config", str(model / "model.json"), "--train.steps=1", cwd=tmp_path)
    one, other = (json.loads((folder / "model.json").read_text())["run"] for folder in (model, tmp_path / "x"))
    assert other == {**one, "train": {**one["train"], "steps": 1}}


def test_a_dry_run_prints_settings_that_are_read_back_and_trains_nothing(tmp_path: Path) -> None:
    small = ["--data.images", "9"]
    done = succeed("train", "shapes-dtm", "--out", "run", "--train.steps", "7", *small, "--dry-run", cwd=tmp_path)
    (tmp_path / "settings.yaml").write_text(done.stdout)
    settings = with_file(RECIPES["shapes-dtm"](), tmp_path / "settings.yaml")
    assert (settings.train.steps, settings.data.images) == (7, 9)
    assert not (tmp_path / "run").exists()
    for recipe in (recipe() for recipe in RECIPES.values()):
        (tmp_path / "settings.yaml").write_text(as_file(recipe))
        assert with_file(recipe, tmp_path / "settings.yaml") == recipe


def test_a_dry_run_rejects_what_the_run_would_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", "shapes-fm", "--out", str(tmp_path / "run"), "--dry-run"]
    checkpoint.save(tmp_path / "run", 3, {}, {"settings": RECIPES["shapes-fm"]().model_dump(mode="json")})
    succeed(*command)
    for other in ("train.batch_size", "train.steps"):
        assert_rejected(run(*command, f"--{other}", "2"), other)
    (tmp_path / "run" / "step-00000003").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "metadata.jsonl").touch()
    assert_rejected(run(*command), "metadata.jsonl")
    monkeypatch.setenv("WORLD_SIZE", "3")
    command[3] = str(tmp_path / "new")
    assert_rejected(run(*command, "--train.batch-size", "8"), "multiple of 3")


@pytest.mark.parametrize(
    ("processes", "settings", "words"), [("2", ["--train.stesp", "3"], "--train.stesp"), ("two", [], "two")]
)
def test_torchrun_reports_an_error_once(processes: str, settings: list[str], words: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [Path(__file__).parents[2] / "scripts" / "torchrun.sh", "shapes-fm", "--out", tmp_path / "run", *settings],
        env={**os.environ, "PROCESSES": processes, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count(words) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_needs_neither_data_nor_memory() -> None:
    settings = ("dtm-s", "--gpus", "2", "--device", "rtx 4090", "--assumed.text-width", "64", "--backbone.depth", "1")
    plan = json.loads(succeed("plan", *settings, "--json").stdout)
    assert (plan["gpus"], plan["device"], plan["tokens_per_image"]) == (2, "RTX 4090", 256)
    assert "GPU-hours" in succeed("plan", *settings).stdout
