"""Several processes: replicas and shards of the weights."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tmatch.train import checkpoint

PROGRAM = Path(__file__).with_name("small_run.py")
STEPS = 50
pytestmark = pytest.mark.xdist_group("processes")  # whose fixtures are runs


def launched(out: Path, ranks: int, restarts: int = 0, **changes: object) -> None:
    """A run of so many processes, as torchrun starts them, and starts again where one dies."""
    settings = {"steps": STEPS, "batch": 12, "device": "cpu", "checkpoint_every": 50, "validate_every": 25, **changes}
    torchrun = [
        "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}",
    ]  # fmt: skip
    options = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    subprocess.run(
        [sys.executable, *(torchrun if ranks > 1 else []), str(PROGRAM), str(out), *options], check=True, timeout=300,
        env=environment, capture_output=True,
    )  # fmt: skip


def losses(out: Path) -> torch.Tensor:
    return torch.tensor([json.loads(line)["loss"] for line in (out / "losses.jsonl").read_text().splitlines()])


def weights(out: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(out / f"step-{STEPS:08d}", "ema")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    launched(out, 1)
    return out


def assert_same_run(out: Path, alone: Path) -> None:
    assert len(losses(out)) == STEPS
    torch.testing.assert_close(losses(out), losses(alone), rtol=0, atol=1e-4)
    averaged = weights(out)
    for key, weight in weights(alone).items():
        torch.testing.assert_close(averaged[key], weight, rtol=1e-4, atol=1e-4)
    validations = [json.loads((run / "validation.jsonl").read_text().splitlines()[-1]) for run in (alone, out)]
    assert validations[0]["ema"] == pytest.approx(validations[1]["ema"], abs=1e-4)


def test_two_replicas_take_the_steps_of_one_process(alone: Path, tmp_path: Path) -> None:
    launched(tmp_path, 2, parallel="replicate", accumulate=2)
    assert_same_run(tmp_path, alone)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shards")
    launched(out, 2, parallel="shard", checkpoint_every=5)
    return out


def test_two_shards_do_too(shards: Path, alone: Path) -> None:
    assert_same_run(shards, alone)


def test_a_run_goes_on_with_another_number_of_processes(alone: Path, tmp_path: Path) -> None:
    launched(tmp_path, 2, parallel="shard", steps=20)
    launched(tmp_path, 1, steps=35)
    launched(tmp_path, 3, parallel="shard")
    assert_same_run(tmp_path, alone)


def test_a_run_that_loses_a_process_ends_with_the_same_weights(shards: Path, tmp_path: Path) -> None:
    launched(tmp_path, 2, parallel="shard", checkpoint_every=5, restarts=1, dies=[1, 23])
    assert (tmp_path / "died").exists()
    hurt = weights(tmp_path)
    assert all(torch.equal(weight, hurt[key]) for key, weight in weights(shards).items())
    assert torch.equal(losses(shards), losses(tmp_path))


def test_a_sharded_checkpoint_is_safetensors_and_nothing_else(shards: Path, tmp_path: Path) -> None:
    newest = Path(shutil.copytree(shards / f"step-{STEPS:08d}", tmp_path / "newest"))
    parts = [f"shard-0000{k}-model-00001-of-00001.safetensors" for k in (1, 2)]
    assert {path.name for path in newest.iterdir()} == {"record.json", *parts}
    (newest / parts[1]).write_bytes(b"")
    with pytest.raises(ValueError, match="newest is damaged"):
        checkpoint.load(newest, "ema")
    (newest / parts[0]).unlink()
    with pytest.raises(ValueError, match=r"newest is damaged \(1 of its 2 parts are there\)"):
        checkpoint.load(newest, "ema")


def test_shards_compute_as_one_process_does_in_bfloat16(tmp_path: Path) -> None:
    few = {"precision": "bfloat16", "steps": 4, "learning_rate": 1e-4}
    launched(tmp_path / "alone", 1, **few)
    launched(tmp_path / "shards", 2, parallel="shard", accumulate=2, **few)
    torch.testing.assert_close(losses(tmp_path / "shards"), losses(tmp_path / "alone"), rtol=0, atol=2e-3)
