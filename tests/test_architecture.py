"""The shape of the code itself."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tmatch"
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = [
    {"tensors", "noise"},
    {"times", "condition", "patch", "layers"},
    {"process", "parametrization", "solver", "backbone", "head"},
    {"guidance"},
    {"kernel"},
    {"model"},
    {"restart"},
    {"variants"},
    {"data", "sample", "eval"},
    {"app"},
]
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("tmatch.")}


def each_file() -> pytest.MarkDecorator:
    inside = [path for path in FILES if path.parent != PACKAGE or path.name != "__init__.py"]
    return pytest.mark.parametrize("path", inside, ids=lambda path: str(path.relative_to(PACKAGE)))


@each_file()
def test_imports_go_one_way(path: Path) -> None:
    here = RANK[room(path)]
    assert all(RANK[other] <= here for other in imports(path)), f"{room(path)} reaches up: {imports(path)}"


def test_the_rooms_of_one_layer_form_no_circle() -> None:
    edges = {(room(path), other) for path in FILES for other in imports(path) if room(path) in RANK}
    assert not {(a, b) for a, b in edges if a != b and (b, a) in edges}


@each_file()
def test_nothing_is_random_but_noise(path: Path) -> None:
    """No call of a global generator; the one seeded generator permutes data, the weights are torch's own business."""
    drawing = {"rand", "randn", "randint", "rand_like", "randn_like", "normal_", "uniform_", "bernoulli", "multinomial"}
    calls = {node.func.attr for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}  # fmt: skip
    assert not calls & drawing
    assert "randperm" not in calls or path.name == "memory.py"


@each_file()
def test_functions_fit_a_screen_and_files_a_sitting(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 50, f"{node.name} is long"


def test_no_variant_is_special() -> None:
    from tmatch.variants import VARIANTS

    for path in FILES:
        names = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert path.name == "variants.py" or not names & set(VARIANTS), f"{path.name} names a variant"
