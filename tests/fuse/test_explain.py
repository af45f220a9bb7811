"""Why a query is unsure: parts that add up, ranks by definition, and sentences that are true."""

import numpy as np
import pytest

from fusevlm import Fuse, Samples, simulate
from fusevlm.fuse.competence import fit_competence
from fusevlm.fuse.explain import (
    BARS,
    References,
    bars_of,
    counted,
    explain,
    references_of,
    sides,
    source_of,
)
from fusevlm.fuse.neighbours import Neighbours, fit_neighbours
from fusevlm.fuse.results import Scores
from fusevlm.fuse.vector import fit_vector
from fusevlm.types import Queries


def world(size=400, seed=0):
    """Statistics of both sides and evidence that follow a hidden u; some evidence is not asked."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal(size)
    noise = rng.standard_normal((size, 5))
    prior = {"s_image": 0.5 * u + noise[:, 0], "s_text": 0.3 * u + noise[:, 1], "s": noise[:, 2]}
    evidence = {"surprisal": u + noise[:, 3], "complement": 0.7 * u + noise[:, 4]}
    evidence["complement"][rng.uniform(size=size) < 0.4] = np.nan
    return prior, evidence, u + 0.5 * rng.standard_normal(size) > 0.8


def test_what_columns_add_is_the_posterior_mean():
    """Against the conditional mean of the joint Gaussian, pattern of gaps by pattern of gaps."""
    prior, evidence, wrong = world()
    model = fit_vector(prior, evidence, wrong)
    added = model.contributions(prior, evidence)
    found = model.condition(prior, evidence)
    np.testing.assert_allclose(sum(added.values()), found.posterior.m, rtol=1e-9, atol=1e-12)
    raw = np.column_stack([*prior.values(), *evidence.values()])
    for row in (0, 7, 33):
        x = (raw[row] - model.mean) / model.sd
        known = ~np.isnan(x)
        direct = model.k[known] @ np.linalg.inv(model.C[np.ix_(known, known)]) @ x[known]
        assert sum(values[row] for values in added.values()) == pytest.approx(direct)
        assert (added["complement"][row] == 0.0) == np.isnan(evidence["complement"][row])


@pytest.mark.parametrize(
    ("name", "prior", "source"),
    [("s_image", True, "picture"), ("mahalanobis_text", True, "question"), ("s", True, "input"),
     ("disagreement", True, "input"), ("competence", True, "competence"),
     ("surprisal", False, "answer"), ("logdet", False, "samples"), ("margin", False, "answer"),
     ("complement", False, "opposite"), ("mine_image", False, "samples")],
)  # fmt: skip
def test_columns_belong_to_sources(name, prior, source):
    assert source_of(name, prior=prior) == source
    assert any(source in names for names in BARS.values())


def test_a_bar_is_the_share_of_calibration_queries_with_less():
    rng = np.random.default_rng(1)
    added = {n: np.round(rng.standard_normal(200), 1) for n in ("picture", "input", "answer")}
    references = references_of(added, rng.uniform(size=200) < 0.3)
    both = added["picture"] + added["input"]
    for value in (-1.0, 0.1, 5.0):
        expected = np.mean(both < value) + 0.5 * np.mean(both == value)
        found = references.rank(BARS["aleatoric"], np.array([value]))
        assert found[0] == pytest.approx(expected)
    nearest = np.argsort(np.abs(added["answer"] - 0.3), kind="stable")[:30]  # at least 30
    assert references.error_rate(["answer"], 0.3) == references.wrong[nearest].mean()
    assert References(added, None).error_rate(["answer"], 0.3) is None


def test_sides_are_the_means_of_their_statistics():
    columns = {"s_image": np.array([1.0, 2.0]), "laplace_image": np.array([3.0, 0.0]),
               "s_text": np.array([5.0, 6.0]), "s": np.array([9.0, 9.0])}  # fmt: skip
    found = sides(columns)
    assert {k: v.tolist() for k, v in found.items()} == {
        "picture": [2.0, 1.0], "question": [5.0, 6.0],
    }  # fmt: skip


def scores_with(added, side=None, novelty=np.nan, strangest=""):
    one = np.zeros(1)
    return Scores(
        *[one] * 10, np.array([4]), np.array([2]), np.array([novelty]), (strangest,), one,
        sources={k: np.array([v]) for k, v in added.items()},
        sides={k: np.array([v]) for k, v in (side or {}).items()},
    )  # fmt: skip


CALIBRATION = References(
    {name: np.linspace(-1, 1, 100) for name in ("picture", "question", "input", "competence",
                                               "answer", "samples")},
    np.arange(100) >= 60,
)  # fmt: skip
LOW = dict.fromkeys(CALIBRATION.added, -0.9)


@pytest.mark.parametrize(
    ("added", "side", "texts", "refused", "reason", "sentence"),
    [
        ({"picture": 3.0}, {"picture": 2.0, "question": 0.0}, "aaaa", "too uncertain", "aleatoric",
         "The picture is poor or unusual; on such pictures it errs 8 times of 10."),
        ({"question": 3.0}, {"picture": 0.0, "question": 2.0}, "aaaa", "too uncertain", "aleatoric",
         "The question is worded in an unusual way; on such questions it errs 8 times of 10."),
        ({"input": 3.0}, {}, "aaaa", "too uncertain", "aleatoric",
         "Picture and question do not fit what it knows; on such queries it errs 8 times of 10."),
        ({"competence": 0.5, "answer": -1.0}, {"competence_picture": 0.1,
         "competence_question": 0.4}, "aaaa", "too uncertain", "competence",
         "Questions like this one it often gets wrong: always."),
        ({"competence": 0.5, "answer": 1.9}, {}, "aaab", "too uncertain", "epistemic",
         "It contradicts itself: 3 of 4 say a, 1 b."),
        ({"answer": 1.8}, {}, "aabc", "", "epistemic",
         "It contradicts itself: 2 of 4 say a, 1 b, 1 something else."),
        ({"answer": 1.8}, {}, "aaaa", "", "epistemic",
         "It hesitates over its answer (probability 0.37); when it does, it errs 9 times of 10."),
        ({}, {}, "aaaa", "", "", "Nothing about it is unusual."),
        ({}, {}, "aaaa", "too uncertain", "", "Several things add up."),
        ({"picture": 3.0}, {"picture": 1.0}, "aaaa", "unlike the calibration (image)", "novelty",
         "The picture is unlike those it was calibrated on."),
    ],
)  # fmt: skip
def test_reasons_in_words(added, side, texts, refused, reason, sentence):
    """Rates: 1.2 is at .7 of the total of three sources, where 25 of the 30 nearest are wrong."""
    strangest = "image" if refused.startswith("unlike") else ""
    scores = scores_with({**LOW, **added}, side, 0.001, strangest)
    said = Samples(list(texts), answer="a", answer_logprobs=[-1.0])
    (found,) = explain(scores, CALIBRATION, [said], [refused])
    assert (found.reason, found.sentence) == (reason, sentence)
    assert found.bars["novelty"] == pytest.approx(0.999)


def test_meanings_are_counted_by_their_first_wording():
    said = Samples(["A dog.", "dog", "cat", "the dog", ""])
    assert counted(said) == [("A dog.", 3), ("cat", 1), ("(nothing)", 1)]


def test_a_fit_explains_its_queries():
    known, new = (
        simulate.queries(400, n_samples=6, seed=1),
        simulate.queries(50, n_samples=6, seed=2),
    )
    fuse = Fuse().fit(known.samples, known.wrong, s={"s_image": known.s})
    scores = fuse.score(new.samples, s={"s_image": new.s})
    found = fuse.explain(new.samples, s={"s_image": new.s}, risk=0.3)
    assert len(found) == 50
    total = np.sum(list(scores.sources.values()), axis=0)
    np.testing.assert_allclose(total, scores.m_post, rtol=1e-9, atol=1e-12)
    bars = bars_of(scores, fuse.model.references)
    assert bars["aleatoric"].min() >= 0.0
    assert bars["aleatoric"].max() <= 1.0
    # a bar of calibration queries is uniform, and of queries like them nearly so
    assert abs(bars["aleatoric"].mean() - 0.5) < 0.15
    assert "added_picture" in scores.columns()
    paper = Fuse("paper").fit(known.samples, known.wrong, s=known.s)
    for scored in (paper.score(new.samples, s=new.s),):
        total = scored.sources["input"] + scored.sources["samples"]
        np.testing.assert_allclose(total, scored.m_post)


def test_kinds_of_inputs_add_up_to_competence():
    rng = np.random.default_rng(0)
    inputs = {"image": rng.standard_normal((300, 6)), "text": rng.standard_normal((300, 4))}
    wrong = inputs["image"][:, 0] + inputs["text"][:, 1] + rng.standard_normal(300) > 0
    model = fit_competence(inputs, wrong, [str(i) for i in range(300)]).model
    parts = model.parts(inputs)
    np.testing.assert_allclose(parts["image"] + parts["text"], model.predict(inputs)[0])


# ------------------------------------------------------------------------------- the nearest ones


def table(size=60, seed=3):
    rng = np.random.default_rng(seed)
    inputs = {"image": rng.standard_normal((size, 8)), "text": 5 * rng.standard_normal((size, 6)),
              "prompt": rng.standard_normal((size, 3))}  # fmt: skip
    samples = [Samples(["a", "b"], answer=f"answer {i}") for i in range(size)]
    return Queries([str(i) for i in range(size)], samples, rng.uniform(size=size) < 0.4,
                   inputs=inputs)  # fmt: skip


def test_neighbours_are_the_nearest_by_definition(tmp_path):
    """All directions are kept here, so distances are those of the scaled vectors themselves."""
    queries = table()
    known = fit_neighbours(queries, [f"q{i}" for i in range(60)])
    known.save(tmp_path / "near")
    again = Neighbours.load(tmp_path / "near")
    scaled = np.hstack([
        (queries.inputs[k] - queries.inputs[k].mean(0))
        / np.sqrt(((queries.inputs[k] - queries.inputs[k].mean(0)) ** 2).sum(1).mean())
        for k in ("image", "text")
    ])  # fmt: skip
    for row in (0, 17):
        new = {k: v[row : row + 1] + 0.01 for k, v in queries.inputs.items()}
        apart = np.linalg.norm(scaled - scaled[row], axis=1)
        expected = np.argsort(apart)[:5]
        for found in (known.near(new), again.near(new)):
            assert [n.question for n in found] == [f"q{i}" for i in expected]
            assert [n.wrong for n in found] == [bool(queries.wrong[i]) for i in expected]
            assert found[0].answer == f"answer {row}"
            np.testing.assert_allclose([n.distance for n in found], apart[expected], atol=0.02)
    assert known.near({"image": queries.inputs["image"][:1]}) == []


def test_without_labels_or_inputs_there_are_no_neighbours():
    queries = table()
    bare = Queries(queries.ids, queries.samples, queries.wrong)
    assert fit_neighbours(bare, ["q"] * 60) is None
    unlabelled = Queries(queries.ids, queries.samples, inputs=queries.inputs)
    assert fit_neighbours(unlabelled, ["q"] * 60) is None
