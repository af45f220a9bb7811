"""Early-stopped votes of others, against simulation and brute force."""

import numpy as np
import pytest
from scipy import stats

from fusevlm.scores.votes import SETTLED, adaptive_consistency, confidence_guided, voted
from fusevlm.types import Queries, Samples


def test_the_beta_rule_stops_when_the_leader_is_settled():
    """P(p₁ > ½) by drawing p₁ from its posterior."""
    rng = np.random.default_rng(0)
    for texts, own in ((["a"] * 9, "a"), (["a", "b", "a", "a", "b", "a", "a", "a", "a"], "b"),
                       (["a", "b", "c", "d", "e"], "c")):  # fmt: skip
        used, u = adaptive_consistency(Samples(texts, answer=own))
        for k in range(1, used + 1):
            first, second = [*sorted((texts[:k].count(t) for t in set(texts[:k])), reverse=True),
                             0][:2]  # fmt: skip
            chance = np.mean(rng.beta(first + 1, second + 1, 200_000) > 0.5)
            settled = chance >= SETTLED
            assert settled == (k == used) or (used == len(texts) == k)
        assert u == pytest.approx(1 - (texts[:used].count(own) + 1) / (used + 2))
    assert adaptive_consistency(Samples(["a"] * 9, answer="a"))[0] == 4  # 1 − ½⁵ ≥ .95 > 1 − ½⁴


def test_the_posterior_over_answers_is_bayes():
    """By drawing which answer is right, and samples that give it as often as they say."""
    rng = np.random.default_rng(1)
    texts, c = ["a", "b", "a"], [0.7, 0.4, 0.6]
    said = Samples(texts, [[np.log(x)] for x in c], answer="a")
    used, u = confidence_guided(said)
    assert used == 3
    # three answers: a, b, one unseen
    right = rng.integers(0, 3, 400_000)
    kept = np.ones(len(right), dtype=bool)
    for text, chance in zip([0, 1, 0], c, strict=True):
        others = (right + rng.integers(1, 3, len(right))) % 3
        drawn = np.where(rng.random(len(right)) < chance, right, others)
        kept &= drawn == text
    assert 1 - u == pytest.approx(np.mean(right[kept] == 0), abs=0.01)
    sure = Samples(["a", "a", "b"], [[-0.01]] * 3, answer="b")
    used, u = confidence_guided(sure)
    assert used == 1
    assert u > 0.95  # the judged answer is another


def test_both_go_on_while_answers_disagree_and_stop_when_they_agree():
    rng = np.random.default_rng(2)
    calm = [Samples(["x"] * 20, [[-0.1]] * 20, answer="x")] * 5
    wild = [
        Samples([str(rng.integers(6)) for _ in range(20)], [[-2.0]] * 20, answer="0")
        for _ in range(5)
    ]
    queries = Queries([str(k) for k in range(10)], [*calm, *wild])
    for name in ("adaptive_consistency", "confidence_guided"):
        used, u = voted(name, queries)
        assert used[:5].max() < 6 < used[5:].mean()
        assert u[:5].max() < u[5:].min()
    bare = Samples(["x", "y", "x"], answer="x")
    assert confidence_guided(bare)[0] == 3  # without log-probabilities the vote alone counts
    assert stats.beta.cdf(0.5, 5, 1) == pytest.approx(1 / 32)
