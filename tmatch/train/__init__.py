"""Training: one loop for every task, with resume to the bit."""

from tmatch.train.autoencoder import AutoencoderTask
from tmatch.train.config import TrainConfig
from tmatch.train.generator import BatchSource, Captioned, GeneratorTask
from tmatch.train.interrupt import Interrupted
from tmatch.train.trainer import Task, Trainer

__all__ = [
    "AutoencoderTask", "BatchSource", "Captioned", "GeneratorTask", "Interrupted", "Task", "TrainConfig", "Trainer",
]  # fmt: skip
