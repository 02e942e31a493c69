"""Every example runs, as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("command", "image"),
    [
        (["text_to_image.py"], True),
        (["quickstart.py", "--iterations", "3", "--samples", "20"], True),
        (["per_token_limit.py", "--iterations", "3", "--samples", "20"], True),
        (["own_network.py", "--iterations", "3"], False),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_example_runs(command: list[str], image: bool, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "image.png"
    arguments = ["--out", str(out)] if image else []
    script = ROOT / "examples" / command[0]
    done = subprocess.run(
        [sys.executable, script, *command[1:], *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "evaluations" in done.stdout or "correlation" in done.stdout
    assert out.exists() == image


def test_the_quickstart_trains_with_a_loop_of_20_lines() -> None:
    source = (ROOT / "examples" / "quickstart.py").read_text()
    body = source.split("def train(")[1].split("\n\n\n")[0]
    assert len(body.splitlines()) <= 20
