import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)  # initial weights; everything random in the library takes its own Noise
