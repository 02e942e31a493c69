"""Training: one loop for every task, resumable bit for bit."""

from tmatch.train.autoencoder import AutoencoderTask
from tmatch.train.generator import GeneratorTask
from tmatch.train.trainer import Task, TrainConfig, Trainer

__all__ = ["AutoencoderTask", "GeneratorTask", "Task", "TrainConfig", "Trainer"]
