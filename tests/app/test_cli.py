import json
import subprocess
import sys
from pathlib import Path

import pytest

import tmatch


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from tmatch.app.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_variants_lists_every_row() -> None:
    rows = json.loads(run("variants", "--json").stdout)
    assert [row["variant"] for row in rows] == list(tmatch.VARIANTS)
    assert all(set(row) == {"variant", "process", "Y", "kernel", "times"} for row in rows)
    table = run("variants").stdout
    assert all(name in table for name in tmatch.VARIANTS)


def test_version() -> None:
    assert run("version").stdout.strip() == tmatch.__version__


def test_train_runs_a_recipe_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    small = [
        "--width",
        "8",
        "--data.images",
        "40",
        "--held-out",
        "4",
        "--train.batch",
        "4",
        "--train.cooldown",
        "0",
        "--train.checkpoint-every",
        "2",
    ]
    command = ["train", "shapes-autoencoder", "--out", str(out), *small]
    first = run(*command, "--train.steps", "3")
    assert first.returncode == 0, first.stderr
    assert set(json.loads(first.stdout)) == {"captions_satisfied", "squared_error"}
    assert json.loads((out / "recipe.json").read_text())["width"] == 8
    assert run(*command, "--train.steps", "5").returncode == 0
    assert [json.loads(line)["step"] for line in (out / "losses.jsonl").read_text().splitlines()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shapes-autoencodr", "--out", "x"], "shapes-autoencoder"),
        (["shapes-autoencoder", "--out", "x", "--train.step", "5"], "--train.steps"),
        (["shapes-autoencoder", "--out", "x", "--train.steps", "five"], "five"),
        (["shapes-autoencoder", "--out", "x", "--train.steps", "0"], "greater than 0"),
        (["shapes-autoencoder", "--out", "/proc/nowhere/run"], "tmatch: "),
        (["shapes-autoencoder"], "--out"),
    ],
)
def test_bad_requests_to_train_are_refused(arguments: list[str], words: str) -> None:
    done = run("train", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_names_the_right_ones() -> None:
    done = run("varants")
    assert done.returncode == 2
    assert "variants" in done.stderr
    assert "Traceback" not in done.stderr
