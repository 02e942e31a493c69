"""Training: one loop for every task, resumable bit for bit."""

from tmatch.train.autoencoder import AutoencoderTask
from tmatch.train.config import TrainConfig
from tmatch.train.generator import BatchSource, Captioned, GeneratorTask
from tmatch.train.trainer import Task, Trainer

__all__ = ["AutoencoderTask", "BatchSource", "Captioned", "GeneratorTask", "Task", "TrainConfig", "Trainer"]
