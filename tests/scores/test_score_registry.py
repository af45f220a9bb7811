"""What all scores promise: any order, repeats, one sample, and a reason where they are missing."""

from dataclasses import replace

import numpy as np
import pytest
from tests.scores.score_worlds import known, run, table, with_answer, with_known, with_samples

from fusevlm.errors import InputError
from fusevlm.scores import NEEDS, SCORES, compute_scores, label_free, needs_of
from fusevlm.types import Samples, Semantics

N = 160
WORLD = run(n_queries=N)
# so few wrong samples that a set of one is certified
EASY = replace(WORLD, sample_wrong=[labels == 5 for labels in known(WORLD, "meanings")])


def test_every_score_is_computed_and_named_after_its_key():
    columns, missing = compute_scores(WORLD)
    assert missing == {}
    assert list(columns) == list(SCORES) == [score.name for score in SCORES.values()]
    for name, column in columns.items():
        assert column.shape == (N,), name
        assert column.dtype == np.float64, name
        assert len(np.unique(column)) > 1, name


@pytest.mark.parametrize("name", SCORES)
def test_the_order_of_samples_does_not_matter(name):
    rng = np.random.default_rng(1)
    shuffled = with_samples(WORLD, lambda i, n: rng.permutation(n))
    np.testing.assert_allclose(
        SCORES[name].compute(shuffled), SCORES[name].compute(WORLD), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", SCORES)
def test_repeats_give_finite_scores(name):
    same = with_samples(EASY, lambda i, n: np.zeros(n, dtype=int))
    assert np.isfinite(SCORES[name].compute(same)).all()


@pytest.mark.parametrize("name", SCORES)
def test_a_single_sample_works(name):
    column = SCORES[name].compute(with_samples(EASY, lambda i, n: [0]))
    assert np.isfinite(column).all()


@pytest.mark.parametrize("name", [name for name in SCORES if "fit" not in SCORES[name].needs])
def test_queries_may_have_different_numbers_of_samples(name):
    """Each query keeps the score it has among queries of its own size (a fit would couple them)."""
    mixed = with_samples(WORLD, lambda i, n: np.arange(3 if i % 2 else n))
    short = with_samples(WORLD, lambda i, n: np.arange(3))
    expected = np.where(
        np.arange(N) % 2 == 1, SCORES[name].compute(short), SCORES[name].compute(WORLD)
    )
    np.testing.assert_allclose(SCORES[name].compute(mixed), expected, rtol=1e-9, atol=1e-9)


def agreeing_and_disagreeing():
    """Two queries: all samples say one thing surely; every sample another thing unsurely."""
    rng = np.random.default_rng(5)
    n, d = 6, 12
    near = np.ones((n, d)) + 0.01 * rng.standard_normal((n, d))
    far = rng.standard_normal((n, d))
    sure = Samples(["yes"] * n, [[-0.01]] * n, near, "yes", [-0.01])
    unsure = Samples([f"no {k}" for k in range(n)], [[-2.0]] * n, far, "maybe", [-2.0])
    between = [np.ones((n + 1, n + 1)), np.eye(n + 1)]
    answer_states = np.tile([[0.0], [3.0]], (20, d)) + 0.5 * rng.standard_normal((40, d))
    known = {
        "meanings": [np.zeros(n, int), np.arange(n)] * 20,
        "between": between * 20,
        "rephrasings": [np.ones(5, bool), np.zeros(5, bool)] * 20,
        "p_true": [0.99, 0.1] * 20,
    }
    return table(
        [sure, unsure] * 20,
        middle=[near, far] * 20,
        semantics=known,
        fit=np.arange(30),
        wrong=np.tile([False, True], 20),
        sample_wrong=[np.zeros(n, bool), np.arange(n) < 5] * 20,
        answer_states={"last": answer_states},
    )


@pytest.mark.parametrize("name", SCORES)
def test_disagreement_scores_higher_than_agreement(name):
    sure, unsure = SCORES[name].compute(agreeing_and_disagreeing())[:2]
    assert unsure > sure


def without(queries, need):
    """The same queries without one of the needs."""
    if need in ("fit", "wrong", "sample_wrong"):
        return replace(queries, **{need: None})
    if need == "middle":
        return replace(queries, states={})
    if need == "answer_state":
        return replace(queries, answer_states={})
    if need in ("meanings", "similarity", "rephrasings", "p_true", "complement"):
        return with_known(queries, **{"between" if need == "similarity" else need: None})
    return replace(queries, samples=[replace(one, **{need: None}) for one in queries.samples])


@pytest.mark.parametrize("name", SCORES)
def test_each_need_that_is_absent_is_the_reason(name):
    for need in SCORES[name].needs:
        if need == "texts":
            continue  # Samples cannot be without
        poorer = without(WORLD, need)
        columns, missing = compute_scores(poorer, [name])
        assert columns == {}
        assert missing[name] == f"the run has no {need}; it takes {NEEDS[need]}"
        with pytest.raises(InputError, match=f"the run has no {need}"):
            SCORES[name].compute(poorer)


@pytest.mark.parametrize("name", SCORES)
def test_nothing_beyond_the_needs_is_read(name):
    poor = WORLD
    optional = {"complement"} if name == "festa" else set()
    for need in NEEDS.keys() - set(SCORES[name].needs) - {"texts"} - optional:
        poor = without(poor, need)
    np.testing.assert_array_equal(SCORES[name].compute(poor), SCORES[name].compute(WORLD))


def test_the_needs_of_some_scores_are_what_computes_them():
    names = ["semantic_entropy_rao", "g_nll", "distinct"]
    assert needs_of(names) == {"token_logprobs", "meanings", "answer_logprobs", "texts"}
    assert needs_of([]) == set()
    assert needs_of(SCORES) == NEEDS.keys() - {"complement"}  # evidence of FUSE, not of all queries
    with pytest.raises(InputError, match="Did you mean 'g_nll'"):
        needs_of(["gnll"])


def test_scores_that_read_labels_are_told_apart():
    learnt = {
        "lofreecp",
        "clm_size",
        "mahalanobis",
        "relative_mahalanobis",
        "huq",
        "accuracy_probe",
    }
    assert set(label_free(SCORES)) == SCORES.keys() - learnt
    assert label_free(["huq", "g_nll", "semantic_entropy_probe"]) == (
        "g_nll", "semantic_entropy_probe",
    )  # fmt: skip
    blind = replace(WORLD, wrong=None, sample_wrong=None)
    columns, missing = compute_scores(blind)
    assert tuple(columns) == label_free(SCORES)
    assert set(missing) == learnt


@pytest.mark.parametrize("name", [name for name in SCORES if "fit" in SCORES[name].needs])
def test_calibrated_scores_take_any_numbers_of_samples(name):
    mixed = with_samples(WORLD, lambda i, n: np.arange(4 + i % 4))
    assert np.isfinite(SCORES[name].compute(mixed)).all()


@pytest.mark.parametrize("name", [name for name in SCORES if "fit" in SCORES[name].needs])
def test_labels_outside_the_calibration_queries_are_not_read(name):
    later = np.arange(N) >= N // 2
    other = replace(
        WORLD,
        wrong=WORLD.wrong ^ later,
        sample_wrong=[w ^ flip for w, flip in zip(WORLD.sample_wrong, later, strict=True)],
    )
    np.testing.assert_array_equal(SCORES[name].compute(other), SCORES[name].compute(WORLD))


def test_a_query_without_what_the_others_have_is_named():
    partly = [*WORLD.samples[:-1], replace(WORLD.samples[-1], embeddings=None)]
    _, missing = compute_scores(replace(WORLD, samples=partly), ["umpire"])
    assert missing["umpire"] == "1 of 160 queries have no embeddings (first: 159)"


def test_a_run_without_semantics_says_which_setting_brings_them():
    _, missing = compute_scores(replace(WORLD, semantics=None), ["eigv", "p_true"])
    assert "semantics.similarity = 'sentences'" in missing["eigv"]
    assert "semantics.p_true = true" in missing["p_true"]


def test_a_query_whose_meanings_are_unknown_is_named():
    partly = [*WORLD.semantics[:-1], Semantics()]
    _, missing = compute_scores(replace(WORLD, semantics=partly), ["semantic_entropy_rao"])
    assert missing["semantic_entropy_rao"] == "1 of 160 queries have no meanings (first: 159)"


def test_queries_may_come_as_one_array():
    stacked = with_known(
        replace(WORLD, states={"middle": np.stack(WORLD.states["middle"])}),
        meanings=np.stack(known(WORLD, "meanings")),
        between=np.stack(known(WORLD, "between")),
    )
    for name in ("eigenscore", "semantic_entropy_rao", "eigv", "lofreecp"):
        np.testing.assert_array_equal(SCORES[name].compute(stacked), SCORES[name].compute(WORLD))


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match=r"score 'umpyre' is not known\. Did you mean 'umpire'"):
        compute_scores(WORLD, ["umpyre"])


def test_without_a_single_rephrasing_nothing_agrees():
    nothing = [np.zeros(0, bool)] * N
    columns, _ = compute_scores(with_known(WORLD, rephrasings=nothing), ["neighborhood"])
    assert (columns["neighborhood"] == 1.0).all()


def test_what_a_score_refuses_is_its_reason():
    zero = replace(WORLD.samples[0], embeddings=np.zeros((7, 10)))
    _, missing = compute_scores(replace(WORLD, samples=[zero, *WORLD.samples[1:]]), ["umpire"])
    assert "all zeros" in missing["umpire"]
    negative = [-W for W in known(WORLD, "between")]
    _, missing = compute_scores(with_known(WORLD, between=negative), ["eigv"])
    assert "expected [0, 1]" in missing["eigv"]
    alone = [np.zeros_like(W) for W in known(WORLD, "between")]
    _, missing = compute_scores(with_known(WORLD, between=alone), ["eccentricity"])
    assert "row of zeros" in missing["eccentricity"]
    _, missing = compute_scores(with_known(WORLD, p_true=[1.5] * N), ["p_true"])
    assert "expected probabilities" in missing["p_true"]
    strange = [with_answer(W, np.full(7, np.nan)) for W in known(WORLD, "similarity")]
    _, missing = compute_scores(with_known(WORLD, between=strange), ["lofreecp"])
    assert "NaN" in missing["lofreecp"]
    _, missing = compute_scores(replace(WORLD, wrong=np.ones(N, bool)), ["lofreecp"])
    assert "every calibration query is wrong" in missing["lofreecp"]
    hopeless = [np.ones(7, bool)] * N
    _, missing = compute_scores(replace(WORLD, sample_wrong=hopeless), ["clm_size"])
    assert "no answer sets of risk 0.3" in missing["clm_size"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"meanings": [[0]] * N}, r"meanings\[0\] has shape \(1,\); expected \(7,\)"),
        ({"between": [np.eye(7)] * N}, r"between\[0\] has shape \(7, 7\); expected \(8, 8\)"),
        ({"middle": [np.ones((2, 4))] * N}, r"middle\[0\] has shape \(2, 4\); expected \(7, 4\)"),
        ({"middle": [np.ones(7)] * N}, r"middle\[0\] has shape \(7,\)"),
        ({"middle": [1.0] * N}, r"middle\[0\] has shape \(\)"),
        ({"sample_wrong": [[True]] * N}, r"sample_wrong\[0\] has shape \(1,\)"),
    ],
)
def test_what_does_not_fit_the_samples_is_refused(changed, message):
    ((name, rows),) = changed.items()
    if name == "middle":
        strange = replace(WORLD, states={name: rows})
    elif name == "sample_wrong":
        strange = replace(WORLD, sample_wrong=rows)
    else:
        strange = with_known(WORLD, **changed)
    with pytest.raises(InputError, match=message):
        compute_scores(strange, ["distinct"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"samples": []}, "samples has 0 entries for 160 queries"),
        ({"ids": []}, "there are no queries"),
        ({"states": {"middle": [1.0] * 3}}, "middle has 3 entries for 160 queries"),
        ({"semantics": [Semantics()] * 3}, "semantics has 3 entries for 160 queries"),
        ({"wrong": np.ones(3)}, "expected 160, one per query"),
        ({"fit": [0.5]}, "list of row numbers"),
        ({"fit": [N]}, "expected rows in 0…159"),
        ({"fit": [1, 2, 1]}, "names a query twice"),
    ],
)
def test_queries_that_do_not_fit_together_are_refused(changed, message):
    with pytest.raises(InputError, match=message):
        replace(WORLD, **changed)
