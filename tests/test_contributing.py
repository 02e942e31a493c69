"""The worked examples of CONTRIBUTING.md, applied to a copy of the project and checked by its tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"`(tmatch/[\w/]+\.py)`:\n\n```(python|diff)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())
TRAIN = "--train.steps 2 --train.batch-size 4 --train.preview-every 0 --train.validate-every 0 --validation-images 4"
SMALL = (
    f"{TRAIN} --data.images 16 --eval-prompts 2 --backbone.width 16 --backbone.depth 1 --head.width 16 --head.depth 1"
)
COMMANDS = re.findall(
    r"^    tmatch (train|generate|evaluate)(.*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
)
REGISTERED = "velocity] or [velocity or ssprk3 or transformer or overshoot or mean-flow"


def apply(diff: str, source: str) -> str:
    """Apply a diff whose context lines say where to insert."""
    lines, position = source.splitlines(), 0
    for line in diff.splitlines():
        mark, text = line[:1], line[1:]
        if mark in (" ", "-"):
            position = lines.index(text, position) + 1
        if mark == "-":
            position -= 1
            del lines[position]
        if mark == "+":
            lines.insert(position, text)
            position += 1
    return "\n".join(lines) + "\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for name in ("tmatch", "tests", "docs", "examples", "benchmarks", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for file in [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]:
        shutil.copy(file, tmp_path)
    for path, kind, text in BLOCKS:
        file = tmp_path / path
        file.write_text(text if kind == "python" else apply(text, file.read_text()))
    return tmp_path


def run(project: Path, *command: str, code: int = 0) -> str:
    """The output of a command in the project, which must end with the exit code."""
    environment = {**os.environ, "PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def laws(project: Path, *arguments: str, code: int = 0) -> str:
    return run(project, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-vv", *arguments, code=code)


def test_the_worked_examples_satisfy_every_law(project: Path) -> None:
    folders = ("tests/parametrization", "tests/solver", "tests/head", "tests/eval/test_exact.py")
    output = laws(project, *folders, "-k", REGISTERED)
    assert "test_a_perfect_kernel_regenerates_the_data[velocity-diffusion-cosine]" in output
    assert "test_so_is_every_process_and_parametrization[linear-velocity]" in output
    assert "test_error_falls_with_the_order[stretched-ssprk3]" in output


def test_the_worked_examples_pass_the_linters(project: Path) -> None:
    run(project, "scripts/docs.py")
    assert "velocity.py" in (project / "docs" / "tree.md").read_text()
    files = [path for path, kind, _ in BLOCKS if kind == "python"]
    laws(project, "tests/test_architecture.py", "-k", " or ".join(path.rpartition("/")[2] for path in files))
    for command in (("check",), ("format", "--check")):
        run(project, "-m", "ruff", *command, *(path for path, _, _ in BLOCKS))


def test_the_worked_examples_run_from_the_command_line(project: Path) -> None:
    assert {command for command, _ in COMMANDS} == {"train", "generate", "evaluate"}
    commands = [
        [command, *options.split(), *(SMALL.split() if command == "train" else [])] for command, options in COMMANDS
    ]
    output = run(project, "-c", f"from tmatch.app.cli import main\nfor command in {commands}: main(command)")
    assert "sharpness of reference" in output
    assert (project / "stripes.png").is_file()


def test_the_laws_catch_a_wrong_example(project: Path) -> None:
    file = project / "tmatch" / "solver" / "ssprk3.py"
    file.write_text(file.read_text().replace("4 * k_3", "3 * k_3"))
    file = project / "tmatch" / "parametrization" / "velocity.py"
    file.write_text(file.read_text().replace("- sigma * y) / r", "+ sigma * y) / r"))
    output = laws(project, "tests/parametrization", "tests/solver", "-k", REGISTERED, code=1)
    failed = set(re.findall(r"FAILED (\S+?)\[", output))
    assert {
        "tests/solver/test_solver.py::test_error_falls_with_the_order",
        "tests/parametrization/test_parametrization.py::test_a_perfect_kernel_regenerates_the_data",
    } <= failed
