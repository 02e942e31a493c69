import pytest
import torch
from laws import condition, shape_of, small_model, steps_of

import tmatch as tm
from tmatch.codec import CodeAutoencoder, Codec
from tmatch.generation.frames import evenly_spaced, frames

SHOWN = {"fm": 10, "dtm": 10, "artm-2": 8, "fhtm-3": 12, "mar": 4, "martm-2": 8, "ar-discrete": 4, "mar-discrete": 4}


@pytest.mark.parametrize("name", SHOWN)
def test_the_path_ends_at_the_image(name: str) -> None:
    """Estimates for FM and DTM; four snapshots per transition where tokens are sampled in turn."""
    torch.manual_seed(0)
    model, given = small_model(name), condition(2)
    codec = Codec(tm.Patchify((1, 1) if tm.VARIANTS[name].discrete else (2, 2)))
    if tm.VARIANTS[name].discrete:
        codec.autoencoder = CodeAutoencoder((11,), channels=4, width=8).eval()
    else:
        codec.decode = lambda x: tm.Patchify((2, 2)).decode(x).expand(-1, 3, -1, -1).sigmoid()  # one channel as three
    generated = tm.generate(model, shape_of(name), [0, 1], given, steps=steps_of(name), keep_path=True)
    shown = frames(generated.path, codec, batch_size=2)
    assert len(shown) == SHOWN[name]
    torch.testing.assert_close(shown[-1], codec.decode(generated.x), atol=1e-4, rtol=1e-4)
    if "mar" in name or "discrete" in name:
        grey = [(frame == 0.5).all(1).float().mean().item() for frame in shown[:4]]
        assert grey == sorted(grey, reverse=True)
        assert grey[0] > 0.5
        assert grey[3] == 0, "masks fill in"


def test_a_strip_shows_evenly_spaced_frames() -> None:
    assert evenly_spaced(5, 13) == [0, 1, 2, 3, 4]
    assert evenly_spaced(128, 5) == [0, 32, 64, 95, 127]
