"""Every example runs."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


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
def test_example_runs(
    command: list[str], image: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, threads = tmp_path / "new folder" / "image.png", torch.get_num_threads()
    monkeypatch.setattr("sys.argv", [*command, *(["--out", str(out)] if image else [])])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / command[0]), run_name="__main__")
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "evaluations" in printed or "correlation" in printed
    assert out.exists() == image
