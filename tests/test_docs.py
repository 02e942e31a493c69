"""Documentation: links, symbols, generated pages, quoted numbers, code and commands."""

import ast
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tmatch.recipes import RECIPES

ROOT = Path(__file__).parent.parent
README, RESULTS, TRAINING, REAL_DATA = (
    (ROOT / name).read_text() for name in ("README.md", "docs/results.md", "docs/training.md", "docs/real_data.md")
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CURRENT = [path for path in DOCUMENTS if path.parent.name != "log" and path.name != "CHANGELOG.md"]
PUBLISHED = ("https://raw.githubusercontent.com/tmatch/tmatch/main/", "https://github.com/tmatch/tmatch/blob/main/")
"""Addresses of files in this repository, for pages that are read elsewhere."""


def named(documents: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", documents, ids=lambda path: path.name)


@named(DOCUMENTS)
def test_links_resolve(document: Path) -> None:
    for target in re.findall(r"\[[^\]\"]*\]\(([^)\s]+)\)", document.read_text()):
        inside = [target.removeprefix(prefix) for prefix in PUBLISHED if target.startswith(prefix)]
        path, _, anchor = (ROOT / inside[0] if inside else document.parent / target).as_posix().partition("#")
        if inside or not target.startswith("https://"):
            file = Path(path) if path != document.parent.as_posix() + "/" else document
            assert file.exists(), target
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
            assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings], target


@named(CURRENT)
def test_named_files_exist(document: Path) -> None:
    added = set(re.findall(r"^`(tmatch/[\w/]+\.py)`:$", document.read_text(), re.MULTILINE))  # by an example
    mentioned = re.findall(r"(?<![\w/.])(?:tmatch|tests|examples|benchmarks|docs)/[\w/-]+\.\w+", document.read_text())
    for name in mentioned:
        assert name in added or (ROOT / name).exists(), name


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
    assert [f"{path}::{symbol}" for path, symbol in entries if not symbol_exists(ROOT / path, symbol)] == []


GENERATED: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "scripts" / "docs.py"))["PAGES"]


@pytest.mark.parametrize("page", GENERATED)
def test_generated_pages_are_up_to_date(page: str) -> None:
    assert (ROOT / "docs" / f"{page}.md").read_text() == GENERATED[page](), "run `make docs`"


def result(name: str) -> Any:  # noqa: ANN401
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())


def fraction(row: dict[str, Any]) -> str:
    low, high = row["interval_95"]
    return f"{row['captions_satisfied']:.3f} ({low:.3f} to {high:.3f})"


def percent(values: list[float], digits: int = 0, separator: str = "; ") -> str:
    return separator.join(f"{value:.{digits}%}" for value in values)


def quality() -> list[str]:
    learning, decoders = result("learning"), ("shapes_autoencoder", "shapes_codes_autoencoder")
    rows = {(row["model"], row["steps"], row["head_steps"]): row for row in learning["rows"]}
    family, full = ({row["model"]: row for row in result(name)["rows"]} for name in ("family", "family_full"))
    pairs = [["shapes-artm-3", "shapes-fhtm-3"], ["shapes-artm-3-dependent", "shapes-fhtm-3-dependent"]]
    return [
        fraction(rows["shapes-fm", 16, 1]),
        fraction(rows["shapes-dtm-mean", 16, 4]),
        fraction(result("dtm_from_fm")),
        *(f"{fraction(row)}; {fraction(row['withheld'])}" for row in learning["chosen"]),
        f"{fraction(full['shapes-artm-3'])}; {fraction(full['shapes-ar'])}",
        "; ".join(", ".join(f"{family[name]['captions_satisfied']:.3f}" for name in pair) for pair in pairs),
        *(f"{result(name)['captions_satisfied']:.1%} of 1,000" for name in decoders),
    ]


def test_measured_overheads_stay_within_their_bounds() -> None:
    assert result("sampler_overhead")["ratio"] <= 1.05
    assert result("train_step")["shapes-dtm-mean"]["beyond_the_networks"] <= 0.05


def reliability_and_speed() -> list[str]:
    kills, prepared, step = result("kill_and_resume"), result("prepare"), result("train_step")["shapes-dtm-mean"]
    bad, threads = result("fuzz")["groups"][-1], result("threads")["models"]
    batches = [(int(size), row) for rows in result("batch_size")["models"].values() for size, row in rows.items()]
    small, large = ([row for size, row in batches if (size >= 8) is many] for many in (False, True))
    two, one, processes = (result(f"train_dit{which}")["sizes"] for which in ("", "_one_thread", "_two_processes"))
    decode = result("decode")["times_as_fast_as"]
    others = ("autoregressive-diffusion-pytorch", "Hugging Face Llama", "Hugging Face Llama, compiled")
    compiled = "; ".join(f"{decode['tmatch, compiled'][name]:.2f}" for name in others)
    eager = "; ".join(f"{decode['tmatch'][name]:.2f}" for name in others[:2])
    ratios = [(two[0], "ratio"), (two[0], "ratio_trimmed"), (two[1], "ratio_to_padded")]
    rates = [[size["eager"]["share_of_matmul"] for size in sizes if size["text"] == 120] for sizes in (two, one)]
    speed = f"{step['images_a_second']:.0f} images/s, {step['share_of_matmul']:.0%} of the matmul rate"
    return [
        f"{kills['identical']} of {kills['runs']} runs identical; {kills['kills']} kills, {kills['interrupts']} "
        f"interrupts, {kills['during_a_write']} of them while writing",
        f"{bad['cases']:,} cases: {bad['traceback']}, {bad['hang']}, {bad['silently wrong']}",
        "; ".join(f"{row['images'] - row['different_images']:,} of {row['images']:,}" for row in threads.values()),
        f"{sum(row['images_that_differ'] for row in small)} of {sum(row['images'] for row in small)}, by "
        f"{max(row['levels'] for row in small)} of 256 levels at most; "
        f"{sum(row['tensors_that_differ'] for row in large)} of {sum(row['images'] for row in large)}",
        f"yes, {prepared['killed']} kills; {prepared['peak_mb']} and {prepared['peak_mb_of_a_tenth']} MB",
        labelled_data(),
        f"{result('sampler_overhead')['ratio']:.2f}",
        f"{step['beyond_the_networks']:.1%} of a step; {speed}",
        *(f"{size['eager'][key]:.2f}; {size['compiled'][key]:.2f}" for size, key in ratios),
        *map(percent, rates),
        percent([size["eager"]["share_of_matmul"] for size in processes], 1),
        f"{compiled}; neither compiled, {eager}",
    ]


def labelled_data() -> str:
    found = result("labelled_data")
    assert found["same_images"]
    assert found["same_labels"]
    speed = found["times_as_fast_as_the_loop"]
    return f"yes; {found['largest_difference']:g}; {speed['class folders']} and {speed['npz']}"


@pytest.mark.parametrize("cells", [quality, reliability_and_speed])
def test_results_quote_what_was_measured(cells: Callable[[], list[str]]) -> None:
    assert [cell for cell in cells() if f"| {cell} |" not in RESULTS] == []


def test_real_data_quotes_what_was_measured() -> None:
    withheld = result("real_data_withheld")["emoji"]["fm"]
    followed = [*result("real_data")["emoji"].values(), withheld]
    rows = [percent(list(row["followed"].values()), 1, " | ") for row in followed]
    rows += [percent([row["share"] for row in withheld["withheld"].values()], 1, " | ")]
    rows += [" | ".join(str(row["median_place"]) for row in withheld["withheld"].values())]
    assert [row for row in rows if f"| {row} |" not in REAL_DATA] == []
    assert f"Withheld names: {', '.join(withheld['shown'])}." in REAL_DATA


def test_training_quotes_what_was_measured() -> None:
    ratios = [row["processes_over_threads"] for row in result("cpu_processes").values() if isinstance(row, dict)]
    assert f"{min(ratios)} to {max(ratios)} times" in " ".join(TRAINING.split())


def test_the_readme_compares_the_shipped_models() -> None:
    rows = {(row["model"], row["preset"]): row["captions_satisfied"] for row in result("presets")["rows"]}
    models = {"flow matching": "fm", "DTM from flow matching": "dtm-from-fm", "DTM from scratch": "dtm-mean"}
    for name, model in models.items():
        shares = [f"{rows[f'shapes-{model}', preset]:.3f}" for preset in ("fast", "balanced", "best")]
        assert f"| {name} | {' | '.join(shares)} |" in README


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1000


@named(CURRENT)
def test_recipes_in_commands_exist(document: Path) -> None:
    for name in re.findall(r"(?:tmatch (?:train|plan)|scripts/torchrun\.sh) ([a-z][\w-]*)", document.read_text()):
        assert name in RECIPES, name


def test_the_readmes_commands_follow_each_other() -> None:
    """A command reads only what an earlier command wrote, and nothing is written twice."""
    commands = re.findall(r"^    (tmatch .*)$", README, re.MULTILINE)
    assert len(commands) > 5
    made: set[str] = set()
    for command in commands:
        words = command.partition("  #")[0]
        read = re.findall(r"--(?:model|init\.model|autoencoder|data\.folders?|config) (\S+)", words)
        assert set(read) <= made, command
        written = set(re.findall(r"--out (\S+)", words))
        assert not made & written, command
        made |= written


BLOCKS = [
    pytest.param(code, id=f"{path.name}-{k}")
    for path in CURRENT
    if path.name != "CONTRIBUTING.md"
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_python_blocks_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    smaller = code.replace("range(200)", "range(2)").replace("depth=24", "depth=2").replace("steps=20_000", "steps=2")
    exec(compile(smaller, "documentation", "exec"), {})
