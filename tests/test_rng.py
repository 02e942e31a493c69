import numpy as np
import pytest
import torch
from laws import normal_cdf

from tmatch import RandomStreams
from tmatch.rng import seeded_init


def test_a_stream_does_not_depend_on_its_batch() -> None:
    together = RandomStreams([5, 6, 7, -1, 2**63 - 1])
    batch = [together.normal(3, 5), together.uniform(4), together.normal()]
    for k, seed in enumerate([5, 6, 7, -1, 2**63 - 1]):
        alone = RandomStreams([seed])
        for drawn, one in zip(batch, [alone.normal(3, 5), alone.uniform(4), alone.normal()], strict=True):
            assert torch.equal(drawn[k], one[0])


def test_a_stream_keeps_its_position_on_another_device() -> None:
    here, there = RandomStreams(range(3)), RandomStreams(range(3))
    assert torch.equal(here.uniform(4), there.uniform(4))
    there = there.to("cpu")
    assert torch.equal(here.normal(5), there.normal(5))
    assert there.to("meta").normal(5).is_meta


def test_normal_numbers_are_normal() -> None:
    x = RandomStreams(range(400)).normal(500).flatten().sort().values
    n = len(x)
    gap = (normal_cdf(x) - torch.arange(1, n + 1) / n).abs().max()
    assert gap < 1.95 / n**0.5  # Kolmogorov-Smirnov, one in a thousand
    assert abs(x.pow(4).mean() - 3) < 5 * (96 / n) ** 0.5


def test_uniform_numbers_are_uniform_and_open() -> None:
    x = RandomStreams(range(400)).uniform(500).flatten().sort().values
    assert x.min() > 0
    assert x.max() < 1
    assert (x - torch.arange(1, len(x) + 1) / len(x)).abs().max() < 1.95 / len(x) ** 0.5


def test_no_bits_give_an_end_of_the_interval_or_an_infinite_number() -> None:
    for bits in (0, -1, 2**63 - 1, -(2**63)):
        streams = RandomStreams([0])
        streams._bits = lambda count, bits=bits: torch.full((1, count), bits)  # type: ignore[method-assign]
        assert 0 < streams.uniform() < 1
        assert streams.normal(2).isfinite().all()


def test_streams_and_positions_are_uncorrelated() -> None:
    n = 4000
    x = RandomStreams(range(40)).normal(n)  # neighbouring seeds, the ones people use
    off = torch.corrcoef(x).fill_diagonal_(0)
    assert off.abs().max() < 5 / n**0.5
    y = RandomStreams(range(n)).normal(40)
    assert torch.corrcoef(y.T).fill_diagonal_(0).abs().max() < 5 / n**0.5


def test_no_stream_is_another_one_shifted() -> None:
    """Nor is a call a repetition of an earlier one."""
    n, streams = 4000, RandomStreams(range(20))
    x = torch.cat((streams.uniform(n // 2), streams.uniform(n // 2)), dim=1) - 0.5
    for shift in (1, 2, 3, n // 2):
        products = x[:, None, shift:] * x[None, :, :-shift]
        assert (products.mean(-1) / (products.shape[-1] ** -0.5 / 12)).abs().max() < 5


def test_derive_depends_on_seed_step_and_sample() -> None:
    def first(seed: int, step: int, sample: int) -> float:
        return RandomStreams.derive(seed, step, [sample]).normal().item()

    values = [first(*key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (11, 1, 0), (1, 11, 0)]]
    assert len(set(values)) == len(values)
    assert first(3, 4, 5) == RandomStreams.derive(3, 4, 8).normal()[5].item()


def test_seeds_are_integers_of_any_kind() -> None:
    wrong = ([], torch.zeros(2), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.complex64), 5)
    for seeds in (*wrong, [1.5], ["a"], torch.zeros(2, dtype=torch.uint64)):
        with pytest.raises(ValueError, match="integer"):
            RandomStreams(seeds)  # type: ignore[arg-type]
    wide = RandomStreams([3, 4]).normal(2)
    assert torch.equal(RandomStreams(torch.tensor([3, 4], dtype=torch.int32)).normal(2), wide)
    assert torch.equal(RandomStreams(np.array([3, 4])).normal(2), wide)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**64, 2**70, np.uint64(2**63)])
def test_a_seed_that_would_equal_another_is_rejected(seed: int) -> None:
    with pytest.raises(ValueError, match=r"2\*\*63"):
        RandomStreams([0, seed])
    assert len(RandomStreams([-(2**63), 2**63 - 1]).normal().unique()) == 2


def test_seeded_init_touches_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with two GPUs, reading their generators would initialize them."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for name in ("get_rng_state", "set_rng_state", "manual_seed_all"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_: pytest.fail("a GPU was touched"))
    before, drawn = torch.get_rng_state(), []
    for _ in range(2):
        with seeded_init(3):
            drawn.append(torch.nn.Linear(2, 2).weight)
    assert torch.equal(*drawn)
    assert torch.equal(torch.get_rng_state(), before)
