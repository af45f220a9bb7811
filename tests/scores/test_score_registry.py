"""What all scores promise: any order, repeats, one sample, and a reason where they are missing."""

from dataclasses import replace

import numpy as np
import pytest
from tests.scores.score_worlds import run, with_samples

from fusevlm.errors import InputError
from fusevlm.scores import SCORES, Inputs, compute_scores
from fusevlm.types import Samples

N = 160
WORLD = run(n_queries=N)
# so few wrong samples that a set of one is certified
EASY = replace(WORLD, sample_wrong=[clusters == 5 for clusters in WORLD.clusters])


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
    return Inputs(
        [sure, unsure] * 20,
        middle=[near, far] * 20,
        clusters=[np.zeros(n, int), np.arange(n)] * 20,
        similarity=[np.ones((n, n)), np.eye(n)] * 20,
        answer_similarity=[np.ones(n), np.zeros(n)] * 20,
        agreement=[np.ones(5, bool), np.zeros(5, bool)] * 20,
        p_true=np.tile([0.99, 0.1], 20),
        fit=np.arange(30),
        wrong=np.tile([False, True], 20),
        sample_wrong=[np.zeros(n, bool), np.arange(n) < 5] * 20,
    )


@pytest.mark.parametrize("name", SCORES)
def test_disagreement_scores_higher_than_agreement(name):
    sure, unsure = SCORES[name].compute(agreeing_and_disagreeing())[:2]
    assert unsure > sure


@pytest.mark.parametrize("name", SCORES)
def test_each_need_that_is_absent_is_the_reason(name):
    for need in SCORES[name].needs:
        if need == "texts":
            continue  # Samples cannot be without
        if hasattr(WORLD, need):
            poorer = replace(WORLD, **{need: None})
        else:
            bare = [replace(one, **{need: None}) for one in WORLD.samples]
            poorer = replace(WORLD, samples=bare)
        columns, missing = compute_scores(poorer, [name])
        assert columns == {}
        assert need in missing[name]
        with pytest.raises(InputError, match=f"the run has no {need}"):
            SCORES[name].compute(poorer)


@pytest.mark.parametrize("name", SCORES)
def test_nothing_beyond_the_needs_is_read(name):
    """Answers that were never sampled make LoFreeCP need answer_similarity; here all were."""
    given = [replace(one, answer=one.texts[0]) for one in WORLD.samples]
    needs = SCORES[name].needs
    optional = ("token_logprobs", "embeddings", "answer", "answer_logprobs")
    bare = [
        Samples(one.texts, **{field: getattr(one, field) for field in optional if field in needs})
        for one in given
    ]
    fields = ("middle", "clusters", "similarity", "agreement", "p_true", "fit", "wrong")
    fields += ("sample_wrong",)
    poor = Inputs(bare, **{field: getattr(WORLD, field) for field in fields if field in needs})
    full = replace(WORLD, samples=given)
    np.testing.assert_array_equal(SCORES[name].compute(poor), SCORES[name].compute(full))


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


def test_queries_may_come_as_one_array():
    stacked = replace(
        WORLD,
        middle=np.stack(WORLD.middle),
        clusters=np.stack(WORLD.clusters),
        similarity=np.stack(WORLD.similarity),
    )
    for name in ("eigenscore", "semantic_entropy_rao", "eigv", "lofreecp"):
        np.testing.assert_array_equal(SCORES[name].compute(stacked), SCORES[name].compute(WORLD))


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="no score is called 'umpyre'"):
        compute_scores(WORLD, ["umpyre"])


def test_without_a_single_rephrasing_nothing_agrees():
    nothing = [np.zeros(0, bool)] * N
    columns, _ = compute_scores(replace(WORLD, agreement=nothing), ["neighborhood"])
    assert (columns["neighborhood"] == 1.0).all()


def test_what_a_score_refuses_is_its_reason():
    zero = replace(WORLD.samples[0], embeddings=np.zeros((7, 10)))
    _, missing = compute_scores(replace(WORLD, samples=[zero, *WORLD.samples[1:]]), ["umpire"])
    assert "all zeros" in missing["umpire"]
    negative = [-W for W in WORLD.similarity]
    _, missing = compute_scores(replace(WORLD, similarity=negative), ["eigv"])
    assert "expected [0, 1]" in missing["eigv"]
    alone = [np.zeros_like(W) for W in WORLD.similarity]
    _, missing = compute_scores(replace(WORLD, similarity=alone), ["eccentricity"])
    assert "row of zeros" in missing["eccentricity"]
    _, missing = compute_scores(replace(WORLD, p_true=WORLD.p_true + 1.0), ["p_true"])
    assert "expected probabilities" in missing["p_true"]
    _, missing = compute_scores(replace(WORLD, answer_similarity=None), ["lofreecp"])
    assert "pass answer_similarity" in missing["lofreecp"]
    strange = [np.full(7, np.nan)] * N
    _, missing = compute_scores(replace(WORLD, answer_similarity=strange), ["lofreecp"])
    assert "NaN" in missing["lofreecp"]
    _, missing = compute_scores(replace(WORLD, wrong=np.ones(N, bool)), ["lofreecp"])
    assert "every calibration query is wrong" in missing["lofreecp"]
    hopeless = [np.ones(7, bool)] * N
    _, missing = compute_scores(replace(WORLD, sample_wrong=hopeless), ["clm_size"])
    assert "no answer sets of risk 0.3" in missing["clm_size"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"samples": []}, "samples is empty"),
        ({"middle": WORLD.middle[:3]}, "middle has 3 entries for 160 queries"),
        ({"clusters": [[0]] * N}, r"clusters\[0\] has shape"),
        ({"similarity": [np.eye(3)] * N}, r"similarity\[0\] has shape \(3, 3\)"),
        ({"middle": [np.ones((2, 4))] * N}, r"middle\[0\] has shape \(2, 4\)"),
        ({"p_true": np.ones(3)}, r"p_true has shape \(3,\)"),
        ({"fit": [0.5]}, "list of query indices"),
        ({"fit": [N]}, "expected indices in 0…159"),
        ({"fit": [1, 2, 1]}, "names a query twice"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(changed, message):
    with pytest.raises(InputError, match=message):
        replace(WORLD, **changed)
