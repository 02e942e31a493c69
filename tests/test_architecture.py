"""The structure of the code: layers, cycles, names, sizes."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tmatch.variants import VARIANTS

PACKAGE = Path(__file__).parent.parent / "tmatch"
LAYERS = [
    {"__init__"},
    {"config", "extras", "files", "migrate", "ranks", "reading", "rng", "tensors"},
    {"condition", "layers", "times"},
    {"backbone", "head", "parametrization", "process", "solver"},
    {"guidance"},
    {"sampling"},
    {"distribution"},
    {"kernel"},
    {"sampler"},
    {"model"},
    {"variants"},
    {"codec", "conditioning", "hub"},
    {"data"},
    {"eval", "generation", "plan", "prepare", "train"},
    {"datasets"},
    {"runs"},
    {"recipes"},
    {"pipeline"},
    {"app"},
    {"__main__"},
]
"""Files and folders of the package; each imports from its own layer and from those above it."""
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
EACH = pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(PACKAGE)))
PROTOCOL_NAMES = {"main", "T"}
"""Names that several modules define because their callers expect it; and the type variable."""


def module(path: Path) -> str:
    """The dotted name of a file; of a folder for its __init__.py."""
    parts = ["tmatch", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path) for path in TREES}


def layer(name: str) -> str:
    """The file or folder directly under the package that a module is in."""
    return [*name.split("."), "__init__"][1]


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, those inside functions included, but not those under `if TYPE_CHECKING`."""
    yield tree
    typing = isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING"
    for child in tree.orelse if typing and isinstance(tree, ast.If) else ast.iter_child_nodes(tree):
        yield from nodes(child)


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, at its top or inside functions."""
    found = set()
    for node in nodes(TREES[path]):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES


IMPORTS = {module(path): imports(path) for path in TREES}


@EACH
def test_imports_follow_the_layers(path: Path) -> None:
    own = RANK[layer(module(path))]
    up = {name for name in IMPORTS[module(path)] if RANK[layer(name)] > own}
    assert not up, f"{module(path)} imports from a layer below it: {up}"


def test_neither_modules_nor_folders_form_an_import_cycle() -> None:
    """Neither at import time nor through imports inside functions."""
    folders = defaultdict(set)
    for name, others in IMPORTS.items():
        folders[layer(name)] |= {layer(other) for other in others} - {layer(name)}
    assert folders.keys() <= RANK.keys()
    for graph in (IMPORTS, folders):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")


def test_no_name_has_two_meanings() -> None:
    """A public class, function or constant is defined in one module only."""
    homes = defaultdict(set)
    for path, tree in TREES.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = {part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)}
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = {node.name}
            for name in names - PROTOCOL_NAMES:
                homes[name].add(module(path))
    double = {name: sorted(where) for name, where in homes.items() if len(where) > 1 and not name.startswith("_")}
    assert not double, "\n".join(f"{name}: {', '.join(where)}" for name, where in sorted(double.items()))


@EACH
def test_random_numbers_come_from_random_streams(path: Path) -> None:
    """No call of a global generator; the one seeded generator permutes data."""
    drawing = {"rand", "randn", "randint", "rand_like", "randn_like", "normal_", "uniform_", "bernoulli", "multinomial"}
    every = ast.walk(TREES[path])
    calls = {n.func.attr for n in every if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    assert not calls & drawing
    assert "randperm" not in calls or path.name == "batches.py"


@EACH
def test_functions_and_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 50, f"{node.name} is long"


@EACH
def test_no_variant_is_special(path: Path) -> None:
    names = {node.value for node in ast.walk(TREES[path]) if isinstance(node, ast.Constant)}
    assert layer(module(path)) in ("variants", "recipes", "migrate") or not names & set(VARIANTS)
