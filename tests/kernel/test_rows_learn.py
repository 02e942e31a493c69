"""Variants that sample tokens in turn learn the dependence between tokens; one step of DTM cannot."""

from dataclasses import replace

import pytest
import torch
from laws import assert_moments
from torch import Tensor

import tmatch as tm

TOKENS, CODES = 4, 3
MEAN = torch.tensor([0.5, -0.5, 0.0, 1.0])
COVARIANCE = 0.7 + 0.3 * torch.eye(TOKENS)
FACTOR = torch.linalg.cholesky(COVARIANCE)
STEPS = {"artm-3": 500, "fhtm-3": 1000, "martm-3": 800}  # training steps; ar and mar have the same kernels
ONE_STEP = replace(tm.VARIANTS["dtm"], times=tm.Grid.uniform(1))
ROWS = {**tm.VARIANTS, "one step of DTM": ONE_STEP}
SAMPLES = 1500  # moments are checked to five standard errors


def gaussian(rng: tm.RandomStreams) -> Tensor:
    return (MEAN + rng.normal(TOKENS) @ FACTOR.T)[..., None]


def chain(rng: tm.RandomStreams) -> Tensor:
    """A Markov chain of four codes that stays with probability 3/4."""
    first, steps = (rng.uniform() * CODES).long(), (rng.uniform(TOKENS - 1) * 8).long()
    steps = torch.where(steps < 6, 0, steps - 5)  # 0 six times of eight, then 1 and 2
    return (torch.cat((first[:, None], first[:, None] + steps.cumsum(1)), dim=1) % CODES)[..., None].float()


def trained(name: str, data, steps: int = 500, batch: int = 256, rate: float = 8e-3) -> tm.Model:  # noqa: ANN001
    """A small model after a short training."""
    torch.manual_seed(0)
    row = ROWS[name]
    backbone = tm.DiT(32 if row.embeds else 1, width=32, depth=1, heads=2, timed=row.timed)
    head = tm.HeadConfig(width=32, depth=2, samples_per_token=2)
    model = row.build(backbone, 1, head, CODES if row.discrete else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    for step in range(steps):
        rng = tm.RandomStreams.derive(0, step, batch)
        optimizer.zero_grad()
        model.loss(data(rng), rng).mean().backward()
        optimizer.step()
        schedule.step()
    return model


@pytest.mark.parametrize("name", STEPS)
def test_a_correlated_gaussian_is_learned(name: str) -> None:
    """And the whole path: Cov(X_s, X_t) = s t Cov(X_T)."""
    model = trained(name, gaussian, steps=STEPS[name])
    params = tm.SamplingParams(tm.Midpoint(8))
    drawn = tm.generate(model, (TOKENS, 1), range(SAMPLES), params=params, batch_size=SAMPLES, keep_path=True)
    assert_moments(drawn.x[..., 0], MEAN, COVARIANCE)
    states = [snapshot.x_t[..., 0] for snapshot in drawn.path if snapshot.kind == "transition"]
    t = torch.tensor(model.times.points[1:]).repeat_interleave(TOKENS)
    covariance = t.outer(t) * COVARIANCE.repeat(len(states), len(states)) + ((1 - t) ** 2).diag()
    assert_moments(torch.cat(states, dim=1), t * MEAN.repeat(len(states)), covariance)


def test_one_step_of_dtm_samples_independent_tokens() -> None:
    model = trained("one step of DTM", gaussian)
    x = tm.generate(model, (TOKENS, 1), range(SAMPLES), params=tm.SamplingParams(tm.Midpoint(8)), batch_size=SAMPLES).x
    assert_moments(x[..., 0], MEAN, COVARIANCE.diagonal().diag())


@pytest.mark.parametrize("name", ["ar-discrete", "mar-discrete"])
def test_a_markov_chain_of_codes_is_learned(name: str) -> None:
    model = trained(name, chain, steps=800)
    n = 4000
    x = tm.generate(model, (TOKENS, 1), range(n), batch_size=n).x[..., 0].long()
    move = torch.full((CODES, CODES), 1 / 8) + torch.eye(CODES) * 5 / 8
    for i, j in [(0, 1), (1, 2), (2, 3), (0, 3)]:
        chance = torch.linalg.matrix_power(move, j - i) / CODES
        seen = torch.bincount(x[:, i] * CODES + x[:, j], minlength=CODES**2).view(CODES, CODES) / n
        assert ((seen - chance).abs() < 5 * (chance * (1 - chance) / n).sqrt()).all()
