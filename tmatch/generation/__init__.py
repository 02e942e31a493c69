"""Generation: seeds, batches, progress, the path taken, what it costs; prompts to images."""

from tmatch.generation.compiled import compile_for_sampling
from tmatch.generation.generate import Evaluations, Generation, generate
from tmatch.generation.text_to_image import GeneratedImages, TextToImage

__all__ = ["Evaluations", "GeneratedImages", "Generation", "TextToImage", "compile_for_sampling", "generate"]
