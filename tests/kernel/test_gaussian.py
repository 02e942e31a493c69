import pytest
import torch
from exact import ExactMean, GaussianMixture
from laws import PROCESSES
from torch import nn

import tmatch as tm
from tmatch.kernel.gaussian import Std
from tmatch.parametrization import PARAMETRIZATIONS

VP = tm.DiffusionProcess(tm.VariancePreserving())
UNIT = GaussianMixture.gaussian(torch.zeros(1).double(), torch.eye(1).double())


def gaussian(process: tm.Process, y: tm.Parametrization, std: Std | None = None) -> tm.TransitionMatching:
    kernel = tm.GaussianKernel(ExactMean(UNIT, process, y), nn.Identity(), std)
    return tm.TransitionMatching(process, y, kernel, tm.Continuous())


@pytest.mark.parametrize("q", PROCESSES)
@pytest.mark.parametrize("y", [y for y in PARAMETRIZATIONS if y != "next-state"])
def test_the_std_is_that_of_the_posterior_for_unit_data(y: str, q: str) -> None:
    process, parametrization, n = PROCESSES[q], PARAMETRIZATIONS[y], 20_000
    t = torch.tensor(0.4).double()
    exact = ExactMean(UNIT, process, parametrization)
    x_t = torch.full((n, 1, 1), 0.3, dtype=torch.float64)
    samples = exact.y(exact.posterior(x_t, t).sample(tm.RandomStreams(range(n), dtype=torch.float64)), x_t, t)
    w = tm.unit_data_std(process, parametrization)(t)
    assert samples.std().item() == pytest.approx(w.item(), rel=5 / (2 * n) ** 0.5)


@pytest.mark.parametrize("y", [tm.NoiseState(), tm.CleanState(), tm.Difference()], ids=lambda y: type(y).__name__)
def test_with_it_unit_data_has_unit_variance_at_any_number_of_steps(y: tm.Parametrization) -> None:
    n = 40_000
    model = gaussian(VP, y, tm.unit_data_std(VP, y))
    x = model.sample((1, 1), tm.RandomStreams(range(n), dtype=torch.float64), steps=3)
    assert x.var().item() == pytest.approx(1, abs=5 * (2 / n) ** 0.5)


@pytest.mark.parametrize("name", ["ddpm", "x-prediction"])
def test_the_last_step_adds_no_noise(name: str) -> None:
    """As in Ho et al., the last mean is the sample."""
    row = tm.variant(name)
    model = gaussian(row.process, row.parametrization)
    start = tm.RandomStreams(range(4), dtype=torch.float64).normal(1, 1)
    rngs = (tm.RandomStreams(range(4)), tm.RandomStreams(range(4, 8)))
    assert torch.equal(*(model.sample((1, 1), rng, steps=[0.9, 1], start=start) for rng in rngs))


def test_a_std_needs_a_process_with_fresh_noise() -> None:
    y, kept = tm.NoiseState(), tm.GaussianProcess(tm.VariancePreserving())
    with pytest.raises(ValueError, match="adds variance that no drift removes"):
        gaussian(kept, y, tm.unit_data_std(kept, y))
    model = gaussian(VP, y, tm.unit_data_std(VP, y))
    with pytest.raises(ValueError, match="adds variance that no drift removes"):
        model.sample((1, 1), tm.RandomStreams([0]), steps=3, sampler=tm.DDIMSampler())
