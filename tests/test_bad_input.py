"""Every kind of bad input gets a typed error that helps, or a documented finite result."""

import numpy as np
import pytest

from fusevlm import Fuse, Samples, simulate
from fusevlm.errors import InputError, NotFittedError

GOOD = {
    "texts": ["a", "b", "c"],
    "token_logprobs": [[-0.1, -0.2], [-0.3], [-1.0]],
    "embeddings": np.eye(3, 6),
    "answer": "a",
    "answer_logprobs": [-0.1, -0.2],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": []}, "3 entries for 0 texts"),
        ({"texts": [], "answer": None}, "texts is empty"),
        ({"texts": "abc"}, "list of strings"),
        ({"texts": ["a", "b", 3]}, "list of strings"),
        ({"texts": ["a", "b"]}, "3 entries for 2 texts"),
        ({"token_logprobs": [[-0.1], [-0.2]]}, "2 entries for 3 texts"),
        ({"token_logprobs": [[-0.1], [], [-0.2]]}, r"token_logprobs\[1\].*EOS"),
        ({"token_logprobs": [[-0.1], [0.7], [-0.2]]}, r"token_logprobs\[1\] holds 0.7.*logits"),
        ({"token_logprobs": [[-0.1], [np.nan], [-0.2]]}, "NaN"),
        ({"token_logprobs": [[-0.1], [-np.inf], [-0.2]]}, "infinite"),
        ({"embeddings": np.eye(2, 6)}, "2 rows for 3 texts"),
        ({"embeddings": np.zeros(6)}, r"shape \(6,\)"),
        ({"embeddings": np.full((3, 6), np.inf)}, "infinite"),
        ({"embeddings": [["x"] * 6] * 3}, "not numeric"),
        ({"answer_logprobs": []}, "answer_logprobs"),
        ({"answer_logprobs": [1.0]}, "at most 0"),
        ({"answer_margins": [0.5]}, r"answer_margins has shape \(1,\) for 2 answer_logprobs"),
        ({"answer_margins": [[0.5, 0.5]]}, "one margin per token"),
        ({"answer_margins": [], "answer_logprobs": None}, "one margin per token"),
        ({"answer_margins": [0.5, -0.1]}, "holds -0.1.*0 or more"),
        ({"answer_margins": [0.5, np.nan]}, "answer_margins.*NaN"),
    ],
)
def test_samples(change, message):
    with pytest.raises(InputError, match=message):
        Samples(**{**GOOD, **change})


def test_tiny_positive_rounding_in_logprobs_is_forgiven():
    assert Samples(["a"], [[1e-9]]).token_logprobs[0][0] == 0.0
    assert Samples(["a"], answer_margins=[-1e-9]).answer_margins[0] == 0.0


def test_the_first_samples_keep_the_answer_whole():
    some = Samples(**GOOD, answer_margins=[0.5, 3.0]).first(1)
    assert (len(some), some.answer_margins.tolist()) == (1, [0.5, 3.0])


def test_the_answer_alone_is_enough():
    some = Samples(**GOOD).first(0)
    assert (len(some), some.texts, some.token_logprobs, some.embeddings) == (0, (), None, None)
    assert (some.answer, some.n_distinct) == (GOOD["answer"], 0)
    assert some.answer_logprobs.tolist() == GOOD["answer_logprobs"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, w: f.fit([], None), "samples is empty"),
        (lambda f, w: f.fit(w.samples[0], None), "got a single one"),
        (lambda f, w: f.fit([{"texts": []}], None), r"samples\[0\] is a dict"),
        (lambda f, w: f.fit(w.samples, s=w.s[:-1]), "s has 299 value"),
        (lambda f, w: f.fit(w.samples, s=np.full(300, np.nan)), "300 NaN"),
        (lambda f, w: f.fit(w.samples, w.wrong[:5], s=w.s), "wrong has 5 value"),
        (lambda f, w: f.fit(w.samples, w.wrong * 2.0, s=w.s), "only 0"),
        (lambda f, w: f.fit(w.samples, ["no"] * 300, s=w.s), "not numeric"),
        (lambda f, w: f.fit(w.samples, w.wrong, s=w.s, extra={"x": [1.0]}), "extra\\['x'\\] has 1"),
        (lambda f, w: f.fit(w.samples[:2], s=w.s[:2]), "at least 3"),
        (lambda f, w: f.fit([*w.samples[:5], Samples(["a"])], None), "query 5 has no embeddings"),
    ],
)
@pytest.mark.parametrize("preset", ["paper", "practical"])
def test_fit(world, preset, call, message):
    with pytest.raises(InputError, match=message):
        call(Fuse(preset), world)


def test_scoring_before_fitting(world):
    with pytest.raises(NotFittedError, match="call fit"):
        Fuse().score(world.samples, s=world.s)
    with pytest.raises(NotFittedError, match="call fit"):
        Fuse().decide(world.samples, s=world.s)
    with pytest.raises(NotFittedError, match="call fit"):
        Fuse().save("nowhere")


def test_another_width_at_scoring_is_named(world):
    fuse = Fuse().fit(world.samples, world.wrong, s=world.s)
    q = world.samples[0]
    other = Samples(q.texts, q.token_logprobs, np.ones((8, 5)), q.answer, q.answer_logprobs)
    with pytest.raises(InputError, match="query 0 has embeddings of 5 features; the fit had 24"):
        fuse.score([other], s=[0.0])


def test_one_sample_per_query_is_refused_where_a_volume_is_needed(world):
    single = [
        Samples(q.texts[:1], q.token_logprobs[:1], q.embeddings[:1], q.answer, q.answer_logprobs)
        for q in world.samples
    ]
    with pytest.raises(InputError, match="at least 2 sampled responses; got 1"):
        Fuse("paper").fit(single, s=world.s)


@pytest.mark.parametrize("preset", ["paper", "practical"])
def test_all_answers_equal_is_finite(world, preset):
    """Within a query all responses repeat; queries still differ."""
    same = [
        Samples(
            ["yes"] * 8,
            q.token_logprobs,
            np.tile(q.embeddings[0], (8, 1)),
            "yes",
            q.answer_logprobs,
        )
        for q in world.samples
    ]
    fuse = Fuse(preset).fit(same, world.wrong, s=world.s)
    x = fuse.score(same, s=world.s)
    assert np.all(np.isfinite(x.u))
    assert np.all(x.n_distinct == 1)
    assert np.all(np.isfinite(fuse.predict_proba(x)))


@pytest.mark.parametrize("preset", ["paper", "practical"])
def test_constant_embeddings_everywhere_are_refused(world, preset):
    constant = [
        Samples(q.texts, q.token_logprobs, np.ones((8, 24)), q.answer, q.answer_logprobs)
        for q in world.samples
    ]
    with pytest.raises(InputError, match="all response embeddings are equal"):
        Fuse(preset).fit(constant, world.wrong, s=world.s)


def test_zero_embedding_cannot_be_normalised(world):
    q = world.samples[0]
    rows = q.embeddings.copy()
    rows[2] = 0.0
    zero = Samples(q.texts, q.token_logprobs, rows, q.answer, q.answer_logprobs)
    with pytest.raises(InputError, match="embedding 2 of a query is all zeros"):
        Fuse().fit([zero, *world.samples], None)


@pytest.mark.parametrize("preset", ["paper", "practical"])
@pytest.mark.parametrize("labels", [np.zeros, np.ones])
def test_one_class_of_labels_is_finite(world, preset, labels):
    fuse = Fuse(preset).fit(world.samples, labels(300), s=world.s)
    x = fuse.score(world.samples, s=world.s)
    assert np.all(np.isfinite(x.u))
    decided = fuse.decide(x, risk=0.2)
    assert decided.coverage == (pytest.approx(1.0, abs=0.05) if not labels(1)[0] else 0.0)


@pytest.mark.parametrize("preset", ["paper", "practical"])
def test_calibration_set_of_three(preset):
    three = simulate.queries(3, n_samples=5, d=12, seed=1)
    fuse = Fuse(preset).fit(three.samples, [0, 1, 0], s=three.s)
    x = fuse.score(three.samples, s=three.s)
    assert np.all(np.isfinite(x.u))
    assert np.all(np.isfinite(fuse.predict_proba(x)))
    assert 0.0 <= fuse.decide(x).coverage <= 1.0


def test_more_samples_than_features():
    many = simulate.queries(200, n_samples=30, d=6, seed=2)
    fuse = Fuse(normalize="none").fit(many.samples, many.wrong, s=many.s)
    x = fuse.score(many.samples, s=many.s)
    assert np.corrcoef(x.parts["logdet"], many.columns["u"])[0, 1] > 0.8
    with pytest.raises(InputError, match="need n ≤ d"):
        Fuse("paper").fit(many.samples, many.wrong, s=many.s)


def test_grid_options_need_labels(world):
    for options in ({"noise": "tempered"}, {"probability": "platt"}):
        with pytest.raises(InputError, match="needs labels"):
            Fuse("paper", **options).fit(world.samples, s=world.s)
    for preset in ("paper", "practical"):
        for name in ("alpha", "z", "shrinkage"):
            with pytest.raises(InputError, match=f"{name} is 'best'"):
                Fuse(preset, **{name: "best"})
    with pytest.raises(InputError, match="needs both right and wrong"):
        Fuse("paper", noise="tempered").fit(world.samples, np.zeros(300), s=world.s)


def test_without_log_probabilities_the_evidence_goes_unweighted(world, caplog):
    mute = [
        Samples(q.texts, None, q.embeddings, q.answer, q.answer_logprobs) for q in world.samples
    ]
    fuse = Fuse().fit(mute, world.wrong, s=world.s)
    assert "goes unweighted" in caplog.text
    plain = Fuse(alpha=0).fit(mute, world.wrong, s=world.s)
    np.testing.assert_allclose(fuse.score(mute, s=world.s).u, plain.score(mute, s=world.s).u)
    with pytest.raises(InputError, match="no token_logprobs to"):
        Fuse(alpha=2.0).fit(mute, s=world.s)


def test_names_of_further_evidence_are_checked(world):
    with pytest.raises(InputError, match="'logdet', which is a name of fusevlm's own"):
        Fuse().fit(world.samples, s=world.s, extra={"logdet": world.s})
    fuse = Fuse().fit(world.samples, world.wrong, s=world.s)
    with pytest.raises(InputError, match="'entropy', which the fit did not have"):
        fuse.score(world.samples, s=world.s, extra={"entropy": world.s})
