"""The package as users get it: a wheel, installed without extras into an environment that has only its dependencies."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from commands import SMALL
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def required(requirements: list[str], found: dict[str, None] | None = None) -> dict[str, None]:
    """The distributions that these requirements install, without extras."""
    found = {} if found is None else found
    for requirement in map(Requirement, requirements):
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ["", *requirement.extras]
        )
        if wanted and requirement.name not in found:
            found[requirement.name] = None
            required(distribution(requirement.name).requires or [], found)
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the built wheel, and links to the installed dependencies and to nothing else."""
    folder = tmp_path_factory.mktemp("install")
    source, environment, links = folder / "source", folder / "venv", folder / "dependencies"
    shutil.copytree(ROOT / "tmatch", source / "tmatch", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    venv.create(environment)
    links.mkdir()
    for name in required(PROJECT["dependencies"]):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            if not (links / top).exists():
                (links / top).symlink_to(Path(str(installed.locate_file(top))))
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{links}\n")
    (wheel,) = source.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--no-compile", wheel], check=True)
    return environment / "bin"


def test_the_wheel_works_without_extras(bare: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [bare / program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    script = "import tmatch, importlib.util as i; print(tmatch.__file__, *map(i.find_spec, ('transformers', 'pytest')))"
    file, *extras = run("python", "-c", script).split()
    assert Path(file).is_relative_to(bare.parent)
    assert extras == ["None", "None"]
    assert "[ok]" in run("tmatch", "generate", "a red circle")
    assert "dtm-mean" in run("tmatch", "variants")
    assert "GPU-hours" in run("tmatch", "plan", "dtm-s", "--backbone.depth", "1", "--head.depth", "1")
    run("tmatch", "train", "shapes-dtm", "--out", "run", *SMALL, "--train.steps", "2")
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_every_import_is_declared() -> None:
    requirements = sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
    declared = {re.sub(r"[-_.]+", "-", Requirement(text).name).lower() for text in requirements}
    homes, undeclared = packages_distributions(), set()
    for path in (ROOT / "tmatch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"tmatch"}:
                if not {re.sub(r"[-_.]+", "-", home).lower() for home in homes.get(name, [])} & declared:
                    undeclared.add(f"{path.relative_to(ROOT)}: {name}")
    assert not undeclared
