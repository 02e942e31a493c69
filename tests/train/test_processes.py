"""Several processes: replicas and shards of the weights."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tmatch.train import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from small_run import main, processes, trainer

PROGRAM = Path(__file__).with_name("small_run.py")
STEPS = 50
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
SETTINGS = {"steps": STEPS, "batch_size": 12, "device": "cpu", "checkpoint_every": 20, "validate_every": 25}


def launched(out: Path, ranks: int, **changes: object) -> None:
    """A run of so many processes under torchrun's agent, but started from a server that has imported torch already."""
    agent = processes().Process(target=_launch, args=(out, ranks, {**SETTINGS, **changes}))
    agent.start()
    try:
        agent.join(300)
        assert agent.exitcode == 0
    finally:
        agent.terminate()
        agent.join(10)


def _launch(out: Path, ranks: int, changes: dict[str, object]) -> None:
    config = LaunchConfig(
        1, 1, ranks, run_id=out.name, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
        start_method="forkserver",
    )  # fmt: skip
    elastic_launch(config, main)(out, changes)


def torchrun(out: Path, ranks: int, restarts: int, **changes: object) -> None:
    """A run of so many processes by the command, which starts them again where one dies."""
    options = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    settings = [f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, **changes}.items()]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(PROGRAM), str(out), *settings],
        check=False, timeout=300, env=os.environ | ONE_THREAD, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def losses(out: Path) -> torch.Tensor:
    return torch.tensor([json.loads(line)["loss"] for line in (out / "losses.jsonl").read_text().splitlines()])


def weights(out: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(out / f"step-{STEPS:08d}", "ema")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    trainer(out, **SETTINGS).run()
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
    launched(tmp_path, 2, parallel="ddp", gradient_accumulation_steps=2)
    assert_same_run(tmp_path, alone)


def test_two_shards_do_too_as_do_those_that_go_on_or_lose_a_process(alone: Path, tmp_path: Path) -> None:
    """One test, for every launch of torchrun takes its seconds."""
    shards = tmp_path / "shards"
    launched(shards, 2, parallel="fsdp")
    assert_same_run(shards, alone)
    assert_safetensors_and_nothing_else(Path(shutil.copytree(shards / f"step-{STEPS:08d}", tmp_path / "newest")))

    one, three = (Path(shutil.copytree(shards, tmp_path / name)) for name in ("one", "three"))
    for again in (one, three):
        shutil.rmtree(again / f"step-{STEPS:08d}")
        assert checkpoint.latest(again) == again / "step-00000040"
    trainer(one, **SETTINGS).run()
    launched(three, 3, parallel="fsdp")
    assert_same_run(one, alone)
    assert_same_run(three, alone)

    hurt = tmp_path / "hurt"
    torchrun(hurt, 2, parallel="fsdp", restarts=1, dies=[1, 43])
    assert (hurt / "died").exists()
    recovered = weights(hurt)
    assert all(torch.equal(weight, recovered[key]) for key, weight in weights(shards).items())
    assert torch.equal(losses(shards), losses(hurt))


def test_two_replicas_of_two_shards_do_too_and_one_process_goes_on(alone: Path, tmp_path: Path) -> None:
    launched(tmp_path, 4, parallel="fsdp", replicas=2)
    assert_same_run(tmp_path, alone)
    shutil.rmtree(tmp_path / f"step-{STEPS:08d}")
    trainer(tmp_path, **SETTINGS).run()
    assert_same_run(tmp_path, alone)


def test_three_replicas_that_go_on_take_the_very_same_steps(tmp_path: Path) -> None:
    """Of two the order in which gradients add up does not matter, of three it does."""
    few = {"parallel": "ddp", "steps": 8, "checkpoint_every": 4, "validate_every": 0, "awake": True}
    launched(whole := tmp_path / "whole", 3, **few)
    shutil.copytree(whole, again := tmp_path / "again")
    shutil.rmtree(again / "step-00000008")
    launched(again, 3, **few)
    for group in ("model", "ema", "optimizer"):
        one, other = (checkpoint.load(out / "step-00000008", group) for out in (whole, again))
        assert all(torch.equal(weight, other[key]) for key, weight in one.items())


def test_shards_compute_as_one_process_does_in_bfloat16(tmp_path: Path) -> None:
    few = {**SETTINGS, "precision": "bfloat16", "steps": 4, "learning_rate": 1e-4, "awake": True}
    trainer(tmp_path / "alone", **few).run()
    launched(tmp_path / "shards", 2, **{**few, "parallel": "fsdp", "gradient_accumulation_steps": 2})
    torch.testing.assert_close(losses(tmp_path / "shards"), losses(tmp_path / "alone"), rtol=0, atol=2e-3)


def assert_safetensors_and_nothing_else(newest: Path) -> None:
    parts = [f"shard-0000{k}-model-00001-of-00001.safetensors" for k in (1, 2)]
    assert {path.name for path in newest.iterdir()} == {"record.json", *parts}
    (newest / parts[1]).write_bytes(b"")
    with pytest.raises(ValueError, match="newest is damaged"):
        checkpoint.load(newest, "ema")
    (newest / parts[0]).unlink()
    with pytest.raises(ValueError, match=r"newest is damaged \(1 of its 2 parts are there\)"):
        checkpoint.load(newest, "ema")


def test_processes_at_rest_may_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ending.py")), str(tmp_path)],
        check=False, timeout=300, env=os.environ | ONE_THREAD, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_first_process_may_take_its_time_to_draw_and_fail(parallel: str, tmp_path: Path) -> None:
    """Longer than processes wait for each other otherwise; what was saved is on the disk by then."""
    launched(
        tmp_path / "run", 2, parallel=parallel, patience=4.0, steps=2, checkpoint_every=2, validate_every=2,
        preview_every=2,
    )  # fmt: skip
    assert len(losses(tmp_path / "run")) == 2
    assert [file.name for file in (tmp_path / "run" / "previews").iterdir()] == ["step-00000002-raw.png"]
    assert len((tmp_path / "run" / "validation.jsonl").read_text().splitlines()) == 1
