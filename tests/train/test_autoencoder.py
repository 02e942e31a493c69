from pathlib import Path

import torch

from tmatch.codec import Autoencoder
from tmatch.data.shapes import Shapes
from tmatch.train import AutoencoderTask, TrainConfig, Trainer


def task() -> AutoencoderTask:
    torch.manual_seed(0)
    return AutoencoderTask(Autoencoder(width=8), Shapes(1).scenes(range(32)).render())


def test_it_learns_to_reconstruct_and_resumes(tmp_path: Path) -> None:
    config = TrainConfig(steps=50, batch_size=8, warmup=10, learning_rate=2e-3, checkpoint_every=25)
    whole, first = Trainer(task(), config, tmp_path / "whole"), Trainer(task(), config, tmp_path / "parts")
    whole.run()
    first.run(until=30)
    second = Trainer(task(), config, tmp_path / "parts")
    second.run()
    losses = [line["loss"] for line in whole.monitor.losses.read()]
    assert losses == [line["loss"] for line in second.monitor.losses.read()]
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])


def test_every_parameter_gets_a_gradient() -> None:
    f = task()
    with torch.no_grad():
        for p in f.parameters():
            p.add_(0.05 * torch.randn_like(p))
    f.loss(0, 8, 0, 1).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in f.parameters())
