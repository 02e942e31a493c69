"""CONTRIBUTING.md's worked examples, carried out in a copy of the project and held to its laws."""

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


def apply(diff: str, source: str) -> str:
    """Insert each + line below the line above it, unless it is there already."""
    lines, place = source.splitlines(), 0
    for line in diff.splitlines():
        text = line[1:]
        if line.startswith("+") and text not in lines:
            lines.insert(place, text)
            place += 1
        elif line.startswith((" ", "+")):
            place = lines.index(text) + 1
    return "\n".join(lines) + "\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("tmatch", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]:
        shutil.copy(file, tmp_path)
    for path, kind, text in BLOCKS:
        file = tmp_path / path
        file.write_text(text if kind == "python" else apply(text, file.read_text()))
    return tmp_path


def run(project: Path, *command: str, code: int = 0) -> str:
    """What a command of the project says; it ends with the exit code."""
    environment = {**os.environ, "PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def laws(project: Path, *arguments: str, code: int = 0) -> str:
    return run(project, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-vv", *arguments, code=code)


def test_the_worked_examples_satisfy_every_law(project: Path) -> None:
    output = laws(
        project, "tests/parametrization", "tests/solver", "tests/eval", "tests/kernel", "-k", "velocity or ssprk3"
    )
    passed = int(re.search(r"(\d+) passed", output).group(1))  # type: ignore[union-attr]
    assert "test_a_perfect_kernel_regenerates_the_data[velocity-diffusion-cosine]" in output
    assert "test_so_is_every_process_and_parametrization[linear-velocity]" in output
    assert "test_error_falls_with_the_order[stretched-ssprk3]" in output
    assert passed > 30


def test_the_worked_examples_pass_the_linters_and_the_documents(project: Path) -> None:
    run(project, "tests/test_docs.py")  # make tree
    laws(project, "tests/test_docs.py", "tests/test_architecture.py")
    assert "velocity.py" in (project / "README.md").read_text()
    for command in (("check",), ("format", "--check")):
        run(project, "-m", "ruff", *command, "tmatch")


def test_the_laws_catch_a_wrong_example(project: Path) -> None:
    file = project / "tmatch" / "solver" / "ssprk3.py"
    file.write_text(file.read_text().replace("4 * k_3", "3 * k_3"))
    file = project / "tmatch" / "parametrization" / "velocity.py"
    file.write_text(file.read_text().replace("- sigma * y) / r", "+ sigma * y) / r"))
    output = laws(project, "tests/parametrization", "tests/solver", "-k", "velocity or ssprk3", code=1)
    failed = set(re.findall(r"FAILED (\S+?)\[", output))
    assert {
        "tests/solver/test_solver.py::test_error_falls_with_the_order",
        "tests/parametrization/test_parametrization.py::test_a_perfect_kernel_regenerates_the_data",
    } <= failed


def test_the_model_is_not_touched() -> None:
    changed = {path for path, _, _ in BLOCKS}
    assert len(changed) == 4
    assert all(path.startswith(("tmatch/parametrization/", "tmatch/solver/")) for path in changed)
