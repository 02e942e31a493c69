import json
import subprocess
import sys

import tmatch


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from tmatch.app.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_variants_lists_every_row() -> None:
    rows = json.loads(run("variants", "--json").stdout)
    assert [row["variant"] for row in rows] == list(tmatch.VARIANTS)
    assert all(set(row) == {"variant", "process", "Y", "kernel", "times"} for row in rows)
    table = run("variants").stdout
    assert all(name in table for name in tmatch.VARIANTS)


def test_version() -> None:
    assert run("version").stdout.strip() == tmatch.__version__


def test_an_unknown_command_names_the_right_ones() -> None:
    done = run("varants")
    assert done.returncode == 2
    assert "variants" in done.stderr
    assert "Traceback" not in done.stderr
