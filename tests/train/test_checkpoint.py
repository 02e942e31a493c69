"""Damaged checkpoints are refused by the name of the file, and the checkpoint before is offered."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tmatch.train import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from small_run import trainer


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stopped")
    trainer(out, cooldown=0.5).run(until=4)
    return out


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A run with checkpoints at steps 2 and 4, for a test to damage."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def assert_refused(run: Path, file: str) -> None:
    with pytest.raises(ValueError, match=rf"step-00000004/{file} .*remove the folder step-00000004 .*step-00000002"):
        trainer(run, cooldown=0.5).resume()
    shutil.rmtree(run / "step-00000004")
    resumed = trainer(run, cooldown=0.5)
    resumed.resume()
    assert resumed.step == 2


@pytest.mark.parametrize("group", ["model", "ema", "optimizer"])
def test_a_flipped_bit_is_found(group: str, run: Path) -> None:
    file = run / "step-00000004" / f"{group}.safetensors"
    content = bytearray(file.read_bytes())
    content[-7] ^= 4
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{file.name} is damaged"):
        checkpoint.load(file.parent, group)
    assert_refused(run, file.name)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "huge header"])
def test_incomplete_files_are_found(damage: str, run: Path) -> None:
    file = run / "step-00000004" / "ema.safetensors"
    whole = file.read_bytes()
    huge = (2**62).to_bytes(8, "little")
    file.write_bytes({"empty": b"", "truncated": whole[:-20], "huge header": huge + whole[8:]}.get(damage, b""))
    if damage == "missing":
        file.unlink()
    assert_refused(run, file.name)


RECORDS: dict[str, Any] = {
    "an earlier step": {"step": 1},
    "a fraction": {"step": 2.5},
    "a word": {"step": "two"},
    "a huge step": {"step": 1e12},
    "no step": {"step": None},
    "a newer format": {"format": 3},
    "a format that is a list": {"format": [2]},
    "parts": {"parts": 3},
    "digests": {"sha256": [1]},
    "no number of steps": {"settings": {"steps": {}}},
    "a number of steps that is a word": {"settings": {"steps": "many"}},
    "too many steps": {"settings": {"steps": 10**12}},
    "more steps than a float holds": {"settings": {"steps": 10**400}},
}


@pytest.mark.parametrize("changes", RECORDS.values(), ids=RECORDS)
def test_a_wrong_record_is_refused(changes: dict[str, Any], run: Path) -> None:
    file = run / "step-00000004" / "record.json"
    record = json.loads(file.read_text())
    changes = {key: record[key] | x if isinstance(x, dict) else x for key, x in changes.items()}
    file.write_text(json.dumps(record | changes))
    assert_refused(run, "(record.json|ema.safetensors)")


@pytest.mark.parametrize("content", ["[]", "3", "null", "", "not json", "\udcff", "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_record_is_refused(content: str, run: Path) -> None:
    file = run / "step-00000004" / "record.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    assert_refused(run, file.name)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["record.json", "ema.safetensors"])
def test_what_is_no_file_is_refused(name: str, kind: str, run: Path) -> None:
    (file := run / "step-00000004" / name).unlink()
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    assert_refused(run, file.name)


def test_deep_logs_and_pipes_as_locks_are_refused(run: Path) -> None:
    (run / "losses.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"losses.jsonl is damaged"):
        trainer(run, cooldown=0.5).resume()
    (run / ".lock").unlink()
    os.mkfifo(run / ".lock")
    with pytest.raises(OSError, match=r"\.lock"):
        trainer(run, cooldown=0.5).resume()


def test_deep_settings_are_refused(run: Path) -> None:
    """Deeper than Python recurses, but not too deep to parse."""
    file = run / "step-00000004" / "record.json"
    record, deep = json.loads(file.read_text()), '{"a":' * 900 + "1" + "}" * 900
    file.write_text(json.dumps({**record, "settings": {**record["settings"], "x": "DEEP"}}).replace('"DEEP"', deep))
    with pytest.raises(ValueError, match=r"record.json is damaged|another x\.a"):
        trainer(run, cooldown=0.5).resume()


def test_without_an_earlier_checkpoint_none_is_offered(run: Path) -> None:
    shutil.rmtree(run / "step-00000002")
    (run / "step-00000004" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model.safetensors is missing; there is no earlier checkpoint"):
        trainer(run, cooldown=0.5).resume()


def test_a_step_that_no_run_takes_is_refused_at_once(run: Path) -> None:
    """Though record.json and the folder agree."""
    file = (run / "step-00000004").rename(run / f"step-{10**12}") / "record.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 10**12}))
    with pytest.raises(ValueError, match=r"set train.steps to at least"):
        trainer(run, cooldown=0.5).resume()


def test_a_checkpoint_without_digests_resumes(run: Path) -> None:
    """As an earlier version wrote it."""
    file = run / "step-00000004" / "record.json"
    record = json.loads(file.read_text())
    assert record["format"] == 2
    assert set(record.pop("sha256")) == {"model.safetensors", "ema.safetensors", "optimizer.safetensors"}
    file.write_text(json.dumps(record))
    resumed = trainer(run, cooldown=0.5)
    resumed.resume()
    assert resumed.step == 4
    loaded = checkpoint.load(file.parent, "ema")
    assert all(torch.equal(weight, loaded[name]) for name, weight in resumed.ema.state_dict().items())
