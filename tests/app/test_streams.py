"""Standard streams that are closed, full, or unable to encode a prompt: the images are written all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = f"{sys.executable} -m tmatch generate 'a red circlö' 'two\x1b[31m squares' --steps 1 --head-steps 1 --out k"


@pytest.mark.parametrize(
    ("redirection", "code"),
    [("2>&-", 0), ("0>&- >&- 2>&-", 0), (">/dev/full", 2), (">/dev/full 2>/dev/full", 2), ("| head -c 1", 0)],
)
def test_no_image_is_lost_to_the_output(redirection: str, code: int, tmp_path: Path) -> None:
    shell = f"set -o pipefail; PYTHONIOENCODING=ascii {COMMAND} {redirection}"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert {file.name for file in (tmp_path / "k").iterdir()} == {"000000.png", "000001.png", "metadata.jsonl"}
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"disk" not in done.stderr
    assert b"Traceback" not in done.stderr
    if redirection == "2>&-":
        assert done.stdout.startswith(b"seed 0  a red circl\\xf6"), "no warnings"
