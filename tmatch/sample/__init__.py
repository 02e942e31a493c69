"""Generation: seeds, batches, progress, the path taken, and what it cost."""

from tmatch.sample.generation import Evaluations, Generation, generate

__all__ = ["Evaluations", "Generation", "generate"]
