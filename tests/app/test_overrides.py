"""Settings as files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tmatch.app.cli import main
from tmatch.app.overrides import as_file, with_file
from tmatch.recipes import RECIPES
from tmatch.train import checkpoint

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", RECIPES)
def test_settings_that_are_written_are_read_back(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]()
    other = recipe.model_copy(update={"train": recipe.train.model_copy(update={"learning_rate": 1e-5, "seed": 7})})
    file = tmp_path / "settings.yaml"
    file.write_text(as_file(other))
    assert with_file(recipe, file) == other != recipe


def test_a_dry_run_says_what_would_be_trained_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", "shapes-dtm", "--out", str(tmp_path / "run"), "--train.steps", "7", "--dry-run"])
    file = tmp_path / "settings.yaml"
    file.write_text(capsys.readouterr().out)
    recipe = RECIPES["shapes-dtm"]()
    assert with_file(recipe, file) == recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 7})})
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_a_folder_that_the_run_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "shapes-fm", "--out", str(tmp_path), "--dry-run"]
    checkpoint.save(tmp_path, 3, {}, {"settings": RECIPES["shapes-fm"]().model_dump(mode="json")})
    main(command)
    for other in ("train.batch_size", "train.steps"):
        with pytest.raises(SystemExit, match="2"):
            main([*command, f"--{other}", "2"])
        assert f"another {other}" in capsys.readouterr().err
    (tmp_path / "step-00000003").rename(tmp_path / "elsewhere")
    (tmp_path / "metadata.jsonl").touch()
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert "no run that could go on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("processes", "settings", "words"),
    [
        ("2", ["--train.stesp", "3"], "--train.steps"),
        ("3", ["--train.batch-size", "8"], "make train.batch_size a multiple of 3"),
        ("2", ["--backbone.heads", "5"], "does not divide by 5"),
        ("2", ["--autoencoder", "nowhere"], "has no recipe.json"),
        ("two", [], "from 1 up; got two"),
        ("0", [], "from 1 up; got 0"),
    ],
)
def test_torchrun_says_once_what_is_wrong(processes: str, settings: list[str], words: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "scripts" / "torchrun.sh", "shapes-fm", "--out", tmp_path / "run", *settings],
        env={**os.environ, "PROCESSES": processes, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count(words) == 1, done.stderr
    assert "Traceback" not in done.stderr
