"""Token choice: frequencies, cut-offs, keyed numbers."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_softmax
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from fusevlm.errors import InputError
from fusevlm.models import temperatures
from fusevlm.models.draws import MOST_MARGIN, NEAR_BOUNDARY, choose, margins, uniforms, warp


def test_keyed_numbers_do_not_depend_on_how_many_are_asked_for():
    few, many = uniforms(3, "q7", range(4), 5), uniforms(3, "q7", range(9), 12)
    np.testing.assert_array_equal(few, many[:4, :5])
    for other in (uniforms(4, "q7", range(4), 5), uniforms(3, "q8", range(4), 5)):
        assert not np.isin(few, other).any()
    big = np.concatenate([uniforms(0, str(i), range(5), 20).ravel() for i in range(200)])
    assert stats.kstest(big, "uniform").pvalue > 0.01


def test_inverse_transform_hits_each_token_as_often_as_it_should():
    p = torch.tensor([0.0, 0.5, 0.1, 0.0, 0.3, 0.1, 0.0])
    u = torch.linspace(0, 1, 100_001, dtype=torch.float64)[:-1]
    token, near = choose(p.expand(len(u), -1), u)
    share = np.bincount(token.numpy(), minlength=7) / len(u)
    np.testing.assert_allclose(share, p.numpy(), atol=2e-5)
    # boundaries inside (0, 1): 0.5, 0.6, 0.9
    expected = np.min(np.abs(u.numpy()[:, None] - np.array([0.5, 0.6, 0.9])), axis=1)
    np.testing.assert_array_equal(near.numpy()[expected > 2e-5], False)
    assert near.numpy()[expected < 0.5 * NEAR_BOUNDARY].all()


def test_a_number_at_either_end_still_gives_a_possible_token():
    p = torch.tensor([[0.0, 0.3, 0.7, 0.0, 0.0]])
    for u, expected in ((0.0, 1), (1.0 - 1e-17, 2)):
        token, _ = choose(p, torch.tensor([u], dtype=torch.float64))
        assert int(token) == expected


@pytest.mark.parametrize("top_k", [None, 5, 1000])
@pytest.mark.parametrize("top_p", [None, 0.8, 1.0])
def test_warping_against_transformers(top_k, top_p):
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(0)) * 3
    heat = torch.rand(20, generator=torch.Generator().manual_seed(1)) + 0.2
    found = warp(logits, heat, top_p=top_p, top_k=top_k)
    for i in range(20):
        scores = TemperatureLogitsWarper(float(heat[i]))(None, logits[i : i + 1])
        if top_k:
            scores = TopKLogitsWarper(top_k)(None, scores)
        if top_p and top_p < 1:
            scores = TopPLogitsWarper(top_p)(None, scores)
        torch.testing.assert_close(found[i : i + 1], scores.softmax(dim=-1), atol=1e-6, rtol=1e-5)


def test_temperature_zero_is_greedy_whatever_else_is_set():
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 1.0, 1.0]])
    p = warp(logits, torch.tensor([0.0, 1.0]), top_p=0.5, top_k=2)
    assert p[0].tolist() == [0.0, 1.0, 0.0]
    assert p[1, 0] == 1.0
    p = warp(logits, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(p[0], logits[0].softmax(dim=-1))
    assert p[1].tolist() == [1.0, 0.0, 0.0]


def test_monte_carlo_temperatures_are_stratified_and_seeded():
    heat = temperatures.stratified(50, seed=1)
    values, counts = np.unique(heat, return_counts=True)
    np.testing.assert_allclose(values, [0.1, 0.325, 0.55, 0.775, 1.0])
    np.testing.assert_array_equal(counts, 10)
    assert not np.array_equal(heat, temperatures.stratified(50, seed=2))
    np.testing.assert_array_equal(heat, temperatures.stratified(50, seed=1))
    _, odd = np.unique(temperatures.stratified(13), return_counts=True)
    assert sorted(odd) == [2, 2, 3, 3, 3]
    spread = temperatures.uniform(4000)
    assert stats.kstest(spread, "uniform", (0.1, 0.9)).pvalue > 0.01
    np.testing.assert_array_equal(temperatures.parse("0.7", 3), [0.7] * 3)
    for bad in ("hot", "-1", "0"):
        with pytest.raises(InputError):
            temperatures.parse(bad, 3)
    with pytest.raises(InputError, match="low ≤ high"):
        temperatures.uniform(3, low=1.0, high=0.5)
    with pytest.raises(InputError, match="above 0"):
        temperatures.stratified(3, grid=[0.0, 1.0])


def test_margins_are_differences_of_log_probabilities():
    logits = torch.randn(30, 12, generator=torch.Generator().manual_seed(0)) * 4
    ordered = np.sort(log_softmax(logits.double().numpy(), axis=1), axis=1)
    np.testing.assert_allclose(margins(logits), ordered[:, -1] - ordered[:, -2], atol=1e-5)
    tie = torch.tensor([[2.0, 2.0, 1.0]])
    assert margins(tie).tolist() == [0.0]


def test_the_margin_of_the_only_possible_token_is_finite():
    only = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert margins(only).tolist() == [MOST_MARGIN]
