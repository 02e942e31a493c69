from pathlib import Path

import torch

from tmatch import RandomStreams
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


def test_the_loss_is_the_error_plus_a_share_of_the_divergence() -> None:
    images = Shapes(1).scenes(range(8)).render()
    plain, weighted = (AutoencoderTask(task().autoencoder, images, kl) for kl in (0.0, 0.5))
    chosen = images[plain.data.indices(0, 8)]
    reconstruction, divergence = plain.autoencoder.trained(chosen, RandomStreams.derive(0, 0, 8))
    torch.testing.assert_close(plain.loss(0, 8, 0, 1), (reconstruction - chosen).square().mean())
    torch.testing.assert_close(weighted.loss(0, 8, 0, 1), plain.loss(0, 8, 0, 1) + 0.5 * divergence)


def test_every_parameter_gets_a_gradient() -> None:
    f = task()
    with torch.no_grad():
        for p in f.parameters():
            p.add_(0.05 * torch.randn_like(p))
    f.loss(0, 8, 0, 1).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in f.parameters())
