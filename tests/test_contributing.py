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
COMMANDS = re.findall(r"^    tmatch (.*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
REGISTERED = "velocity] or [velocity or ssprk3"
SMALL = (
    "--train.steps 2 --train.batch-size 4 --train.warmup 0 --backbone.width 16 --backbone.depth 1 --head.width 16 "
    "--head.depth 1 --data.images 16 --train.preview-every 0"
)


def apply(diff: str, source: str) -> str:
    """Apply a diff whose context lines say where its + lines go; `...` skips lines."""
    lines, position = source.splitlines(), 0
    for line in diff.splitlines():
        if line.startswith("+"):
            lines.insert(position, line[1:])
            position += 1
        elif line.startswith("-"):
            position = lines.index(line[1:])
            del lines[position]
        elif line.startswith(" "):
            position = lines.index(line[1:], position) + 1
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
    output = laws(project, "tests/parametrization", "tests/solver", "tests/eval/test_exact.py", "-k", REGISTERED)
    assert "test_a_perfect_kernel_regenerates_the_data[velocity-diffusion-cosine]" in output
    assert "test_so_is_every_process_and_parametrization[linear-velocity]" in output
    assert "test_the_error_decreases_with_the_order[stretched-ssprk3]" in output


def test_the_worked_examples_pass_the_linters(project: Path) -> None:
    for command in (("-m", "ruff", "check"), ("-m", "ruff", "format", "--check")):
        run(project, *command, "tmatch")
    run(project, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"))  # or else it takes minutes
    laws(project, "tests/test_architecture.py", "-k", "layers or cycle or meanings")


def test_the_worked_examples_work_from_the_command_line(project: Path) -> None:
    """As CONTRIBUTING.md says, with small networks."""
    commands = [f"{command} {SMALL if command.startswith('train') else ''}".split() for command in COMMANDS]
    output = run(project, "-c", f"from tmatch.app.cli import main\nfor command in {commands}: main(command)")
    assert "sharpness" in output


def test_the_laws_catch_a_wrong_example(project: Path) -> None:
    file = project / "tmatch" / "solver" / "ssprk3.py"
    file.write_text(file.read_text().replace("4 * k_3", "3 * k_3"))
    file = project / "tmatch" / "parametrization" / "velocity.py"
    file.write_text(file.read_text().replace("- sigma * y) / r", "+ sigma * y) / r"))
    output = laws(project, "tests/parametrization", "tests/solver", "-k", REGISTERED, code=1)
    failed = set(re.findall(r"FAILED (\S+?)\[", output))
    assert {
        "tests/solver/test_solver.py::test_the_error_decreases_with_the_order",
        "tests/parametrization/test_parametrization.py::test_a_perfect_kernel_regenerates_the_data",
    } <= failed
