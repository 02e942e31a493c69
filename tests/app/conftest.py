import json
from pathlib import Path

import pytest
from commands import SMALL, succeed


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run of shapes-dtm, 4 steps; tests that change it copy it."""
    out = tmp_path_factory.mktemp("runs") / "model"
    done = succeed("train", "shapes-dtm", "--out", str(out), *SMALL, "--train.steps", "4")
    assert json.loads(done.stdout)["prompts"] == 4
    return out
