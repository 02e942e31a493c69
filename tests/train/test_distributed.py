"""Several processes: DDP and FSDP take the steps of a single process."""

import json
import os
import shutil
import subprocess
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch

from tmatch.train import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from small_run import main, processes, trainer

STEPS = 12
SETTINGS = {"steps": STEPS, "batch_size": 12, "device": "cpu", "checkpoint_every": 5, "validate_every": 6}
LAST, BEFORE = f"step-{STEPS:08d}", "step-00000010"


def start(out: Path, ranks: int, timeout: float = 600, **changes: object) -> list[ForkServerProcess]:
    """Start several processes, which meet at a file."""
    out.mkdir(exist_ok=True)
    (out / "store").unlink(missing_ok=True)
    settings, context = {**SETTINGS, **changes}, processes()
    started = [context.Process(target=main, args=(out, settings, rank, ranks, timeout)) for rank in range(ranks)]
    for process in started:
        process.start()
    return started


def finish(started: list[ForkServerProcess]) -> None:
    try:
        for process in started:
            process.join(300)
        assert {process.exitcode for process in started} == {0}
    finally:
        for process in started:
            process.kill()


def launch(out: Path, ranks: int, **changes: object) -> None:
    finish(start(out, ranks, **changes))


def torchrun(out: Path, ranks: int, restarts: int, **changes: object) -> None:
    """Run several processes by torchrun, which restarts them if one dies."""
    options = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    settings = [f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, **changes}.items()]
    program = str(Path(__file__).with_name("small_run.py"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, program, str(out), *settings],
        check=False, timeout=300, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def losses(out: Path) -> torch.Tensor:
    return torch.tensor([json.loads(line)["loss"] for line in (out / "losses.jsonl").read_text().splitlines()])


def weights(out: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(out / LAST, "ema")


def stopped_before_the_end(run: Path, out: Path) -> Path:
    shutil.copytree(run, out)
    shutil.rmtree(out / LAST)
    assert checkpoint.latest(out) == out / BEFORE
    return out


def assert_same_run(out: Path, single: Path) -> None:
    assert len(losses(out)) == STEPS
    torch.testing.assert_close(losses(out), losses(single), rtol=0, atol=1e-4)
    averaged = weights(out)
    for key, weight in weights(single).items():
        torch.testing.assert_close(averaged[key], weight, rtol=1e-4, atol=1e-4)
    validations = [json.loads((run / "validation.jsonl").read_text().splitlines()[-1]) for run in (single, out)]
    assert validations[0]["ema"] == pytest.approx(validations[1]["ema"], abs=1e-4)


@pytest.fixture(scope="module", params=["adamw", "muon"])
def optimizer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, optimizer: str) -> Path:
    out = tmp_path_factory.mktemp("single")
    trainer(out, **SETTINGS, optimizer=optimizer).run()
    return out


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory, optimizer: str) -> Path:
    out = tmp_path_factory.mktemp("fsdp")
    launch(out, 2, parallel="fsdp", optimizer=optimizer)
    return out


def test_ddp_takes_the_steps_of_one_process(single: Path, optimizer: str, tmp_path: Path) -> None:
    launch(tmp_path, 2, parallel="ddp", gradient_accumulation_steps=2, optimizer=optimizer)
    assert_same_run(tmp_path, single)


def test_fsdp_takes_the_steps_of_one_process(single: Path, fsdp: Path) -> None:
    assert_same_run(fsdp, single)


@pytest.mark.parametrize("optimizer", ["muon"], indirect=True)
def test_hsdp_takes_the_steps_of_one_process(single: Path, optimizer: str, tmp_path: Path) -> None:
    launch(tmp_path, 4, parallel="fsdp", replicas=2, optimizer=optimizer)
    assert_same_run(tmp_path, single)


def test_fsdp_resumes_with_another_number_of_processes(
    single: Path, fsdp: Path, optimizer: str, tmp_path: Path
) -> None:
    one, three = (stopped_before_the_end(fsdp, tmp_path / name) for name in ("one", "three"))
    trainer(one, **SETTINGS, optimizer=optimizer).run()
    launch(three, 3, parallel="fsdp", optimizer=optimizer)
    assert_same_run(one, single)
    assert_same_run(three, single)


@pytest.mark.parametrize("optimizer", ["muon"], indirect=True)
def test_torchrun_restarts_a_run_that_loses_a_process(fsdp: Path, optimizer: str, tmp_path: Path) -> None:
    torchrun(tmp_path, 2, parallel="fsdp", restarts=1, dies=[1, 11], optimizer=optimizer)
    assert (tmp_path / "died").exists()
    recovered = weights(tmp_path)
    assert all(torch.equal(weight, recovered[key]) for key, weight in weights(fsdp).items())
    assert torch.equal(losses(fsdp), losses(tmp_path))


def test_ddp_resumes_to_the_bit(optimizer: str, tmp_path: Path) -> None:
    """With three processes the order in which gradients are summed matters."""
    few = {"parallel": "ddp", "validate_every": 0, "awake": True, "optimizer": optimizer}
    launch(whole := tmp_path / "whole", 3, **few)
    resumed = stopped_before_the_end(whole, tmp_path / "resumed")
    launch(resumed, 3, **few)
    for group in ("model", "ema", "optimizer"):
        one, other = (checkpoint.load(out / LAST, group) for out in (whole, resumed))
        assert all(torch.equal(weight, other[key]) for key, weight in one.items())


def test_fsdp_computes_in_bfloat16_as_one_process_does(tmp_path: Path) -> None:
    few = {**SETTINGS, "precision": "bfloat16", "steps": 4, "learning_rate": 1e-4, "awake": True}
    trainer(tmp_path / "single", **few).run()
    launch(tmp_path / "fsdp", 2, **{**few, "parallel": "fsdp", "gradient_accumulation_steps": 2})
    torch.testing.assert_close(losses(tmp_path / "fsdp"), losses(tmp_path / "single"), rtol=0, atol=2e-3)


def test_checkpoints_in_parts_are_safetensors_and_complete(fsdp: Path, tmp_path: Path) -> None:
    newest = Path(shutil.copytree(fsdp / LAST, tmp_path / LAST))
    parts = [f"shard-0000{k}-model-00001-of-00001.safetensors" for k in (1, 2)]
    assert {path.name for path in newest.iterdir()} == {"record.json", *parts}
    whole = (newest / parts[1]).read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        (newest / parts[1]).write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{parts[1]} is damaged"):
            checkpoint.load(newest, "ema")
    (newest / parts[0]).unlink()
    with pytest.raises(ValueError, match="1 of its 2 parts"):
        checkpoint.load(newest, "ema")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_all_processes_find_damage_and_divergence(parallel: str, fsdp: Path, tmp_path: Path) -> None:
    """None of them waits for the one that finds it, which would take until the timeout."""
    damaged, diverged = stopped_before_the_end(fsdp, tmp_path / "damaged"), tmp_path / "diverged"
    part = checkpoint.files(damaged / BEFORE)[1]
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    started = start(damaged, 2, parallel=parallel)
    started += start(diverged, 2, parallel=parallel, learning_rate=3e38, warmup=0, checkpoint_every=1)
    try:
        for process in started:
            process.join(60)
        assert [process.exitcode for process in started] == [1] * 4
    finally:
        for process in started:
            process.kill()
    assert checkpoint.latest(diverged) is None
    assert checkpoint.latest(damaged) == damaged / BEFORE


def test_processes_exit_cleanly_after_drain(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ending.py")), str(tmp_path)],
        check=False, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_rank_0_may_be_slow_and_fail_in_a_preview(tmp_path: Path) -> None:
    """A preview that takes longer than the timeout of collectives does not stop the run, nor does one that fails."""
    settings = {"steps": 2, "checkpoint_every": 2, "validate_every": 2, "preview_every": 2}
    runs = {parallel: tmp_path / parallel for parallel in ("ddp", "fsdp")}
    finish([p for parallel, out in runs.items() for p in start(out, 2, timeout=8, parallel=parallel, **settings)])
    for out in runs.values():
        assert len(losses(out)) == 2
        assert [file.name for file in (out / "previews").iterdir()] == ["step-00000002-raw.png"]
        assert len((out / "validation.jsonl").read_text().splitlines()) == 1
