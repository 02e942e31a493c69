"""Several processes: replicas and shards of the weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("small_run.py")
STEPS = 50


def launched(out: Path, ranks: int, **changes: object) -> None:
    """A run of so many processes, as torchrun starts them."""
    settings = {"steps": STEPS, "batch": 12, "device": "cpu", "checkpoint_every": 50, "validate_every": 25, **changes}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    options = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *launcher, str(PROGRAM), str(out), *options], check=True, env=environment, capture_output=True,
        timeout=300,
    )  # fmt: skip


def losses(out: Path) -> torch.Tensor:
    return torch.tensor([json.loads(line)["loss"] for line in (out / "losses.jsonl").read_text().splitlines()])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    launched(out, 1)
    return out


def assert_same_run(out: Path, alone: Path) -> None:
    assert len(losses(out)) == STEPS
    torch.testing.assert_close(losses(out), losses(alone), rtol=0, atol=1e-4)
    newest = f"step-{STEPS:08d}/ema.safetensors"
    for key, weight in load_file(alone / newest).items():
        torch.testing.assert_close(load_file(out / newest)[key], weight, rtol=1e-4, atol=1e-4)
    validations = [json.loads((run / "validation.jsonl").read_text().splitlines()[-1]) for run in (alone, out)]
    assert validations[0]["ema"] == pytest.approx(validations[1]["ema"], abs=1e-4)


def test_two_replicas_take_the_steps_of_one_process(alone: Path, tmp_path: Path) -> None:
    launched(tmp_path, 2, parallel="replicate", accumulate=2)
    assert_same_run(tmp_path, alone)


def test_shards_do_too_and_a_run_goes_on_with_another_number_of_processes(alone: Path, tmp_path: Path) -> None:
    launched(tmp_path, 2, parallel="shard", steps=20)
    launched(tmp_path, 1, steps=35)
    launched(tmp_path, 3, parallel="shard")
    assert_same_run(tmp_path, alone)
