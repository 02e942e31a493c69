"""Compiled sampling."""

import torch
from laws import SMALL_HEAD

import tmatch as tm
from tmatch.sample import compile_for_sampling


def test_a_compiled_model_draws_the_same_images_and_counts_the_same_calls() -> None:
    torch.manual_seed(0)
    model = tm.build("fhtm-2", tm.Llama(4, width=16, depth=1, heads=2), 4, SMALL_HEAD)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)

    def drawn(images: int) -> tm.sample.Generation:
        return tm.generate(model, (2, 2, 4), range(images), decoding=tm.Decoding(tm.Midpoint(2)), batch_size=2)

    plain = drawn(5)
    compile_for_sampling(model)
    again = drawn(5)  # the last batch is a smaller one
    assert (again.x - plain.x).abs().max() < 1e-4  # the rounding of times, of samples up to 4
    assert again.evaluations == plain.evaluations
