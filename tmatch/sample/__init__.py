"""Generation: seeds, batches, progress, the path taken, what it cost; prompts to pictures."""

from tmatch.sample.compiled import compile_for_sampling
from tmatch.sample.generation import Evaluations, Generation, generate
from tmatch.sample.text_to_image import Pictures, TextToImage

__all__ = ["Evaluations", "Generation", "Pictures", "TextToImage", "compile_for_sampling", "generate"]
