import pytest
from sources import Encoders
from tiny import save_kl_autoencoder, save_text_encoder

from tmatch.codec.diffusers import load_autoencoder
from tmatch.conditioning.transformers import load_text_encoder


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Encoders:
    folder = tmp_path_factory.mktemp("encoders")
    return (
        load_autoencoder(str(save_kl_autoencoder(folder / "kl"))),
        load_text_encoder(str(save_text_encoder(folder / "text")), 8),
    )
