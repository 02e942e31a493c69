"""Runs and data shards of format 1, which the version before wrote, resume and load."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tmatch.migrate import migrate_settings, migrate_weight_name
from tmatch.runs import fit
from tmatch.runs.load import read_config, read_model
from tmatch.train import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))
from goldens import weight_norms

OLD = Path(__file__).parents[1] / "format_1"


@pytest.mark.parametrize("name", ["run-shapes", "run-shards"])
def test_a_run_resumes_to_the_weights_of_its_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps, then two more; the averaged weights are those that the version before ends with."""
    shutil.copytree(OLD / name, out := tmp_path / name)
    shutil.copytree(OLD / "shards", tmp_path / "shards")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    config = read_config(str(out))[1].run
    changes = {"steps": 4, "preview_every": 0}
    fit(config.model_copy(update={"train": config.train.model_copy(update=changes)}), out)
    newest = checkpoint.latest(out)
    assert newest == out / "step-00000004"
    assert checkpoint.record(newest)["format"] == 2
    expected = load_file(OLD / "expected.safetensors")[name]
    torch.testing.assert_close(weight_norms(load_file(out / "model.safetensors")), expected, rtol=0, atol=1e-5)


def test_other_settings_do_not_resume(tmp_path: Path) -> None:
    shutil.copytree(OLD / "run-shapes", out := tmp_path / "run")
    config = read_config(str(out))[1].run
    for key, value in {"max_grad_norm": 2.0, "ema_decay": 0.5, "batch_size": 8}.items():
        changed = config.model_copy(update={"train": config.train.model_copy(update={"steps": 4, key: value})})
        with pytest.raises(ValueError, match=f"another train.{key}"):
            fit(changed, out)


def test_weights_load_under_their_current_names() -> None:
    _, _, weights = read_model(str(OLD / "run-shapes"))
    assert any(name.startswith("model.kernel.distribution.head.") for name in weights)
    assert not any(".law." in name for name in weights)


def test_migration_leaves_the_current_format_as_it_is() -> None:
    old = checkpoint.record(OLD / "run-shapes" / "step-00000002")["settings"]
    assert old["train"]["batch_size"] == 4
    assert old["train"]["parallel"] == "ddp"
    assert old["text"]["max_length"] == 16
    assert (old["caption_dropout"], old["init"]["model"]) == (0.1, None)
    assert migrate_settings(old) == old
    name = "exp_avg.model.kernel.distribution.head.out.bias"
    assert migrate_weight_name(name) == name == migrate_weight_name("exp_avg.model.kernel.law.head.out.bias")
