"""What the documents say is so."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tmatch.recipes.table import RECIPES

from tmatch.app.tables import variant_rows as rows

ROOT = Path(__file__).parent.parent
README, RESULTS, TREE, TRAINING, ALL_RECIPES = (
    (ROOT / name).read_text()
    for name in ("README.md", "docs/results.md", "docs/tree.md", "docs/training.md", "docs/recipes.md")
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EACH = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def purpose(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, f"{path} says nothing of its purpose"
    return text.splitlines()[0]


def tree() -> str:
    """The package, a line a file: its docstring's first."""
    package = ROOT / "tmatch"
    lines = []
    for path in sorted(
        package.rglob("*.py"), key=lambda p: (p.parent != package, p.parent, p.name != "__init__.py", p)
    ):
        where = path.relative_to(package)
        if where.name != "__init__.py":
            lines.append((len(where.parts), where.name, purpose(path)))
        elif path.parent != package:
            lines.append((1, f"{where.parts[0]}/", purpose(path)))
    return "\n".join(f"    {'  ' * depth}{name:<{24 - 2 * depth}}{text}" for depth, name, text in lines)


CHOICES = ("process", "parametrization", "kernel", "solver")
"""The folders that come first, with their files: a choice each."""


def folders() -> str:
    """The package, a line a folder: its docstring's first; and the choices that there are."""
    package, lines = ROOT / "tmatch", []
    names = sorted(path.parent.name for path in package.glob("*/__init__.py"))
    for name in [*CHOICES, *(name for name in names if name not in CHOICES)]:
        lines.append(f"      {name + '/':<18}{purpose(package / name / '__init__.py')}")
        if name in CHOICES:
            files = {path.name for path in (package / name).glob("*.py")} - {"__init__.py", "base.py"}
            lines.append(" " * 24 + " ".join(sorted(files)))
    return "\n".join(lines)


def with_tree(document: str, lines: str) -> str:
    """A document with what it says of the package brought up to date."""
    return re.sub(
        r"(?<=\n    tmatch/)([^\n]*\n).*?(?=\n    examples/)", lambda m: m[1] + lines, document, flags=re.DOTALL
    )


def symbol_exists(path: Path, symbol: str) -> bool:
    scope: list[ast.stmt] = ast.parse(path.read_text()).body
    for name in symbol.split("."):
        found = [n for n in scope if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
        if not found:
            return False
        scope = found[0].body
    return True


def test_the_paper_map_has_no_dead_ends() -> None:
    entries = re.findall(r"`([\w/]+\.py)::([\w.]+)`", (ROOT / "docs" / "paper_map.md").read_text())
    assert len(entries) > 30
    for path, symbol in entries:
        assert (ROOT / path).exists(), path
        assert symbol_exists(ROOT / path, symbol), f"{path}::{symbol}"


@EACH
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\[[^\]\"]*\]\(([^)\s]+)\)", document.read_text()):
        assert target.startswith("https://") or (document.parent / target).exists(), target


@EACH
def test_named_files_exist(document: Path) -> None:
    examples = {"tmatch/parametrization/velocity.py", "tmatch/solver/ssprk3.py"}  # what CONTRIBUTING.md has you write
    for name in re.findall(
        r"\b(?:tmatch|tests|examples|benchmarks|docs)/[\w/]+\.(?:py|md|png|json)\b", document.read_text()
    ):
        assert name in examples or (ROOT / name).exists(), name


def test_the_tree_lists_every_file_with_its_purpose() -> None:
    assert tree() in TREE, "run `make tree`"
    assert with_tree(TREE, tree()) == TREE, "run `make tree`"


def test_the_readme_lists_every_folder_with_its_purpose() -> None:
    assert folders() in README, "run `make tree`"
    assert with_tree(README, folders()) == README, "run `make tree`"


def test_the_readme_lists_every_variant() -> None:
    for row in rows():
        assert f"| {' | '.join(row.values())} |" in README, row


def test_the_results_quote_the_measured_overhead() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "sampler_overhead.json").read_text())
    assert f"| {measured['ratio']:.2f} |" in RESULTS
    assert measured["ratio"] <= 1.05


def test_the_results_quote_the_kills() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "kill_and_resume.json").read_text())
    figures = f"{measured['identical']} of {measured['kills']}, {measured['during_a_write']} killed while writing"
    assert f"| {figures} a checkpoint |" in RESULTS


def test_the_results_quote_the_speed_of_decoding() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "decode.json").read_text())["times_as_fast_as"]
    others = ("autoregressive-diffusion-pytorch", "Hugging Face Llama", "Hugging Face Llama, compiled")
    compiled, eager = (
        "; ".join(f"{measured[ours][name]:.2f}" for name in names)
        for ours, names in (("tmatch, compiled", others), ("tmatch", others[:2]))
    )
    assert f"| {compiled}; neither compiled, {eager} |" in RESULTS


@pytest.mark.parametrize("name", ["shapes_autoencoder", "shapes_codes_autoencoder"])
def test_the_results_quote_the_measured_autoencoders(name: str) -> None:
    measured = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())
    assert f"| {measured['captions_satisfied']:.1%} of 1,000 |" in RESULTS


LEARNING = ROOT / "docs" / "results" / "learning.json"


def test_the_results_quote_the_preparation() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "prepare.json").read_text())
    assert measured["same_bytes"]
    shown = f"yes, {measured['killed']} kills; {measured['peak_mb']} and {measured['peak_mb_of_a_tenth']} MB"
    assert f"| {shown} |" in RESULTS


def test_the_results_quote_dtm_out_of_flow_matching() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "dtm_from_fm.json").read_text())
    low, high = measured["interval_95"]
    shown = f"{measured['captions_satisfied']:.3f} ({low:.3f} to {high:.3f})"
    assert f"| {shown} | `tmatch train shapes-dtm-from-fm" in RESULTS


def test_the_results_quote_the_step_against_pixarts() -> None:
    two, one = (
        json.loads((ROOT / "docs" / "results" / f"train_dit{which}.json").read_text())["sizes"]
        for which in ("", "_one_thread")
    )
    for sizes in (two, one):
        measured = [(size["width"], size["text"]) for size in sizes]
        assert measured == [(384, 120), (384, 300), (768, 120), (1024, 120)]
    for size, ratio in ((two[0], "ratio"), (two[0], "ratio_trimmed"), (two[1], "ratio_to_padded")):
        assert f"| {size['eager'][ratio]:.2f}; {size['compiled'][ratio]:.2f} |" in RESULTS
    processes = json.loads((ROOT / "docs" / "results" / "train_dit_two_processes.json").read_text())["sizes"]
    shares = [f"{size['eager']['share_of_matmul']:.1%}" for size in processes]
    assert f"| {'; '.join(shares)} |" in RESULTS
    for sizes in (two, one):
        shares = [f"{size['eager']['share_of_matmul']:.0%}" for size in (sizes[0], *sizes[2:])]
        assert f"| {'; '.join(shares)} |" in RESULTS


def test_training_quotes_processes_against_threads() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "cpu_processes.json").read_text())
    ratios = [row["processes_over_threads"] for row in measured.values() if isinstance(row, dict)]
    assert f"takes {min(ratios)} to {max(ratios)} times the steps of two threads" in " ".join(TRAINING.split())


def test_the_plans_tables_are_those_of_its_file(benchmark: Callable[[str], ModuleType]) -> None:
    result = json.loads((ROOT / "docs" / "results" / "plan_paper.json").read_text())
    shown = (ROOT / "docs" / "plan.md").read_text().splitlines()
    assert [line for line in benchmark("plan_paper").tables(result).splitlines() if line and line not in shown] == []


def test_real_data_shows_what_was_measured() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "real_data.json").read_text())["emoji"]
    shown = (ROOT / "docs" / "real_data.md").read_text()
    for row in measured.values():
        assert f"| {' | '.join(f'{share:.1%}' for share in row['followed'].values())} |" in shown
        assert f"train {row['recipe']} --shards emoji-shards --train.steps {row['steps']} " in shown
    withheld = json.loads((ROOT / "docs" / "results" / "real_data_withheld.json").read_text())["emoji"]["fm"]
    shares = [row["share"] for row in withheld["withheld"].values()]
    for row in (withheld["followed"].values(), shares):
        assert f"| {' | '.join(f'{share:.1%}' for share in row)} |" in shown
    assert f"| {' | '.join(str(row['median_place']) for row in withheld['withheld'].values())} |" in shown
    assert f"Withheld names: {', '.join(withheld['shown'])}." in shown


@pytest.mark.parametrize("name", ["family", "family_full"])
def test_the_family_is_what_was_measured(name: str, benchmark: Callable[[str], ModuleType]) -> None:
    result = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())
    assert (ROOT / "docs" / f"{name}.md").read_text() == benchmark("family").report(result)


def test_the_results_quote_the_family() -> None:
    short, long = (
        {row["model"]: row for row in json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())["rows"]}
        for name in ("family", "family_full")
    )
    ends = [(row["captions_satisfied"], *row["interval_95"]) for row in (long["shapes-artm-3"], long["shapes-ar"])]
    assert f"| {'; '.join(f'{share:.3f} ({low:.3f} to {high:.3f})' for share, low, high in ends)} |" in RESULTS
    kinds = (["shapes-artm-3", "shapes-fhtm-3"], ["shapes-artm-3-dependent", "shapes-fhtm-3-dependent"])
    shares = "; ".join(", ".join(f"{short[name]['captions_satisfied']:.3f}" for name in names) for names in kinds)
    assert f"| {shares} |" in RESULTS


def test_the_learning_tables_are_what_was_measured(benchmark: Callable[[str], ModuleType]) -> None:
    """docs/learning.md is made from the results, and docs/results.md quotes them."""
    learning = benchmark("learning")
    result = json.loads(LEARNING.read_text())
    assert (ROOT / "docs" / "learning.md").read_text() == learning.report(result)
    settings = {("shapes-dtm-mean", 16, 4), ("shapes-fm", 16, 1)}
    quoted = [row for row in result["rows"] if (row["model"], row["steps"], row["head_steps"]) in settings]
    for row in [*quoted, *result["chosen"], *(row["withheld"] for row in result["chosen"])]:
        low, high = row["interval_95"]
        assert f"{row['captions_satisfied']:.3f} ({low:.3f} to {high:.3f})" in RESULTS


def test_the_results_quote_the_cost_of_a_training_step() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "train_step.json").read_text())["shapes-dtm-mean"]
    speed = f"{measured['images_a_second']:.0f} images/s, {measured['share_of_matmul']:.0%} of a matrix product's rate"
    assert f"| {measured['beyond_the_networks']:.1%} of a step; {speed} |" in RESULTS
    assert measured["beyond_the_networks"] <= 0.05


def test_the_readme_compares_the_shipped_models() -> None:
    """A table of what was measured, with 4 head steps, and of DTM out of flow matching what the text says of it."""
    rows = json.loads(LEARNING.read_text())["rows"]
    heads = {"shapes-fm": 1, "shapes-dtm-from-fm": 4, "shapes-dtm-mean": 4}
    found = {(row["model"], row["steps"]): row for row in rows if row["head_steps"] == heads[row["model"]]}
    names = ("flow matching", "DTM out of flow matching", "DTM trained from nothing")
    for name, model in zip(names, heads, strict=True):
        shares = [f"{found[model, steps]['captions_satisfied']:.3f}" for steps in (2, 4, 8, 16, 32)]
        assert f"| {name} | {' | '.join(shares)} |" in README
    for steps in (4, 8, 16, 32):  # level
        (low, high), (least, most) = (found[model, steps]["interval_95"] for model in list(heads)[:2])
        assert max(low, least) < min(high, most)
    assert found["shapes-dtm-from-fm", 2]["interval_95"][0] > found["shapes-fm", 2]["interval_95"][1]  # ahead
    for steps in (4, 8, 16, 32):  # behind both
        assert all(
            found["shapes-dtm-mean", steps]["captions_satisfied"] < found[model, steps]["captions_satisfied"]
            for model in list(heads)[:2]
        )


def table(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    block = document.split(f"\n{heading}\n")[1].split("\n|---")[1].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in block.splitlines()[1:]]


def test_the_readmes_results_are_among_all() -> None:
    quoted = table(README, "## Results")
    assert len(quoted) >= 5
    for _, result, command in quoted:
        assert f"| {result} | {command}" in RESULTS


def test_every_recipe_is_listed() -> None:
    listed = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\|.*?\|", ALL_RECIPES, re.MULTILINE)))
    assert sorted(listed) == sorted(RECIPES)


@EACH
def test_recipes_in_commands_exist(document: Path) -> None:
    for name in re.findall(r"(?:tmatch (?:train|plan)|scripts/torchrun\.sh) ([a-z][\w-]*)", document.read_text()):
        assert name in RECIPES, name


def test_the_readmes_commands_follow_each_other() -> None:
    """A folder is read after it was written, and written once."""
    commands = re.findall(r"^    (?:\w+=\d+ )?((?:tmatch|scripts/torchrun\.sh|pip|make) .*)$", README, re.MULTILINE)
    assert len(commands) > 15
    made: set[str] = set()
    for command in commands:
        words = command.partition("  #")[0]
        read = re.findall(
            r"(?:--(?:model|start\.model|autoencoder|shards|data\.folder|config)|export|prepare) (\S+)", words
        )
        assert {name for name in read if name.startswith("runs/") or "/" not in name} <= made, command
        written = re.findall(r"(?:--out|>) (\S+)", words)
        new = [name for name in written if "--dry-run" not in words or name.endswith(".yaml")]
        assert not made & set(new), command
        made |= set(new)


BLOCKS = [
    pytest.param(code, id=f"{path.name}-{k}")
    for path in DOCUMENTS
    if path.name == "README.md" or path.parent.name == "docs"
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_the_documents_code_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("range(200)", "range(2)"), "README.md", "exec"), {})


if __name__ == "__main__":
    (ROOT / "docs" / "tree.md").write_text(with_tree(TREE, tree()))
    (ROOT / "README.md").write_text(with_tree(README, folders()))
