"""The shape of the code itself."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tmatch.variants import VARIANTS

PACKAGE = Path(__file__).parent.parent / "tmatch"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
LAYERS = [
    {"config", "migrate", "tensors", "rng", "files", "ranks", "extras"},
    {"times", "condition", "layers"},
    {"process", "parametrization", "solver", "backbone", "head"},
    {"guidance"},
    {"sampling"},
    {"distribution"},
    {"kernel"},
    {"sampler"},
    {"model"},
    {"variants"},
    {"hub"},
    {"codec", "conditioning"},
    {"data"},
    {"train", "generation", "eval", "plan", "prepare"},
    {"runs"},
    {"recipes"},
    {"pipeline"},
    {"app"},
    {"__main__"},
]
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer}
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms a file imports from; `from tmatch import x` reaches them all, so only the command line may."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {(f"{name}.app").split(".")[1] for name in found if name.split(".")[0] == "tmatch"}


@EACH
def test_imports_go_one_way(path: Path) -> None:
    here = RANK[room(path)]
    assert all(RANK[other] <= here for other in imports(path)), f"{room(path)} reaches up: {imports(path)}"


def test_rooms_form_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        graph.setdefault(room(path), set()).update(imports(path) - {room(path)})
    assert set(TopologicalSorter(graph).static_order()) == set(RANK)


@EACH
def test_nothing_is_random_but_noise(path: Path) -> None:
    """No call of a global generator; the one seeded generator permutes data."""
    drawing = {"rand", "randn", "randint", "rand_like", "randn_like", "normal_", "uniform_", "bernoulli", "multinomial"}
    nodes = ast.walk(ast.parse(path.read_text()))
    calls = {n.func.attr for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    assert not calls & drawing
    assert "randperm" not in calls or path.name == "memory.py"


@EACH
def test_functions_fit_a_screen_and_files_a_sitting(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 50, f"{node.name} is long"


@EACH
def test_no_variant_is_special(path: Path) -> None:
    names = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    assert room(path) in ("variants", "recipes", "runs") or not names & set(VARIANTS)
