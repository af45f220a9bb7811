"""How Fuse is called: tables and keywords, refusals that help, clones, displays, warnings."""

import dataclasses
import logging

import numpy as np
import pandas
import pyarrow
import pytest
from sklearn.base import clone

import fusevlm
from fusevlm import Fuse, Queries, Samples, metrics, simulate
from fusevlm.errors import InputError, NotFittedError
from fusevlm.fuse.estimator import divide
from fusevlm.fuse.presets import PRESETS
from fusevlm.fuse.results import Decisions


@pytest.fixture(scope="module")
def new():
    return simulate.queries(80, n_samples=8, d=24, seed=4)


@pytest.fixture(scope="module", params=["paper", "practical"])
def fuse(request, world):
    return Fuse(request.param, normalize="none").fit(world)


def same_scores(one, two):
    for name, values in one.columns().items():
        np.testing.assert_array_equal(values, two.columns()[name], err_msg=name)


def test_a_table_and_its_columns_are_the_same_call(fuse, world, new):
    apart = Fuse(fuse.preset, normalize="none").fit(world.samples, world.wrong, s=world.s)
    x = fuse.score(new)
    same_scores(x, apart.score(new.samples, s=new.s))
    same_scores(x, apart.score(list(new.samples), s={"s": new.s}))
    same_scores(x, apart.score(new.samples, s=new.s[:, None]))
    np.testing.assert_array_equal(fuse.predict_proba(new), apart.predict_proba(new))
    assert fuse.threshold(risk=0.3) == apart.threshold(risk=0.3)
    np.testing.assert_array_equal(
        fuse.decide(new, risk=0.3).answer, apart.decide(x, risk=0.3).answer
    )
    one = Fuse(fuse.preset, normalize="none").fit(world).fit_threshold(new)
    two = apart.fit_threshold(new.samples, new.wrong, s=new.s)
    assert one.threshold(risk=0.3) == two.threshold(risk=0.3)


def test_further_evidence_of_a_table(world, new):
    entropy = {"entropy": world.columns["u"]}
    table = dataclasses.replace(world, evidence=entropy)
    one = Fuse().fit(table)
    two = Fuse().fit(world.samples, world.wrong, s=world.s, extra=entropy)
    x = one.score(dataclasses.replace(new, evidence={"entropy": new.columns["u"]}))
    same_scores(x, two.score(new.samples, s=new.s, extra={"entropy": new.columns["u"]}))
    with pytest.raises(InputError, match=r"'entrpy', which the fit did not have. Did you mean"):
        one.score(new.samples, s=new.s, extra={"entrpy": new.columns["u"]})
    with pytest.raises(InputError, match=r"'logdet', which the fit did not have"):
        one.score(new.samples, s=new.s, extra={"logdet": new.s, "entropy": new.s})
    with pytest.raises(InputError, match="the scalar fusion"):
        Fuse("paper").fit(table)


def test_tables_bring_their_own_columns(fuse, world):
    for name, at in (("wrong", "wrong"), ("s", "prior"), ("extra", "evidence")):
        with pytest.raises(InputError, match=rf"{name} was given beside a table.*{at}=\.\.\."):
            Fuse().fit(world, **{name: {"x": world.s} if name == "extra" else world.wrong})
    with pytest.raises(InputError, match=r"choose: queries.split\(\)\[0\]"):
        Fuse().fit(dataclasses.replace(world, fit=[0, 1, 2]))
    with pytest.raises(InputError, match="fit_threshold needs labels"):
        fuse.fit_threshold(dataclasses.replace(world, wrong=None))


def test_several_statistics_are_the_mean_of_their_standardised_columns(world, new):
    other = np.random.default_rng(0).normal(5.0, 3.0, 380)
    first, second = other[:300] - world.s, other[300:] - new.s
    statistics = {"knn": world.s, "gp": first}
    fuse = Fuse("paper", normalize="none").fit(world.samples, world.wrong, s=statistics)
    parts = [(world.s, new.s), (first, second)]
    known, fresh = (
        sum((pair[k] - pair[0].mean()) / pair[0].std() for pair in parts) / 2 for k in (0, 1)
    )
    reduced = Fuse("paper", normalize="none").fit(world.samples, world.wrong, s=known)
    x, y = (
        fuse.score(new.samples, s={"gp": second, "knn": new.s}),
        reduced.score(new.samples, s=fresh),
    )
    np.testing.assert_allclose(x.m0, y.m0, rtol=1e-9)
    np.testing.assert_allclose(x.u, y.u, rtol=1e-9)
    columns = Fuse("paper", normalize="none").fit(
        world.samples, world.wrong, s=np.column_stack([world.s, first])
    )
    same_scores(x, columns.score(new.samples, s=np.column_stack([new.s, second])))


@pytest.mark.parametrize("kind", [pandas.DataFrame, pyarrow.table])
def test_a_frame_is_taken_by_the_names_of_its_columns(world, new, kind):
    other = np.random.default_rng(0).standard_normal(len(world))
    own = {"a": world.s, "b": other}
    fuse = Fuse().fit(world.samples, world.wrong, s=kind(own), extra=kind({"more": other}))
    assert fuse.model.statistics.names == ("a", "b")
    turned = {"b": other[: len(new)], "a": new.s}
    found = fuse.score(new.samples, s=kind(turned), extra=kind({"more": new.s}))
    same = fuse.score(new.samples, s=turned, extra={"more": new.s})
    np.testing.assert_array_equal(found.u, same.u)


def test_names_of_statistics_must_be_those_of_the_fit(world, new):
    fuse = Fuse().fit(world.samples, world.wrong, s={"knn": world.s, "gap": world.s**2})
    with pytest.raises(InputError, match=r"s holds 'kn', .* Did you mean 'knn'"):
        fuse.score(new.samples, s={"kn": new.s, "gap": new.s})
    with pytest.raises(InputError, match=r"s lacks 'gap', which the fit had"):
        fuse.score(new.samples, s={"knn": new.s})
    with pytest.raises(InputError, match=r"s holds 's', .* Known are: knn, gap"):
        fuse.score(new.samples, s=new.s)
    one = Fuse().fit(world.samples, world.wrong, s={"knn": world.s})
    same_scores(one.score(new.samples, s=new.s), one.score(new.samples, s={"knn": new.s}))
    with pytest.raises(InputError, match="s holds 'gap', which the fit did not have"):
        one.score(new.samples, s={"gap": new.s})


def test_a_statistic_that_does_not_vary_adds_nothing(world, new):
    both = {"knn": world.s, "still": np.full(300, 0.1)}
    fuse = Fuse().fit(world.samples, world.wrong, s=both)
    half = Fuse().fit(world.samples, world.wrong, s=(world.s - world.s.mean()) / 2)
    x = fuse.score(new.samples, s={"knn": new.s, "still": np.full(80, 7.0)})
    y = half.score(new.samples, s=(new.s - world.s.mean()) / 2)
    np.testing.assert_allclose(x.u, y.u, rtol=1e-8)


def test_inputs_are_checked_and_carried(tmp_path, world, new):
    rows, fresh = np.ones((300, 5)), np.ones((80, 5))
    fuse = Fuse(novelty_level=0).fit(world.samples, world.wrong, s=world.s, inputs=rows)
    plain = Fuse(novelty_level=0).fit(world)
    same_scores(fuse.score(new.samples, s=new.s, inputs=fresh), plain.score(new))
    fuse.save(tmp_path / "fit")
    for known in (fuse, Fuse.load(tmp_path / "fit")):
        known.score(new)
        with pytest.raises(InputError, match="has 4 features; the fit had 5"):
            known.score(new.samples, s=new.s, inputs=fresh[:, :4])
        with pytest.raises(InputError, match=r"'input', which the fit did not .* 'inputs'\?"):
            known.score(new.samples, s=new.s, inputs={"input": fresh})
    for bad, message in (
        (np.ones(300), r"shape \(300,\)"),
        (np.ones((9, 5)), "9 entries for 300"),
        (np.full((300, 5), np.nan), "NaN"),
        ({"clip": np.full((300, 5), np.inf)}, r"inputs\['clip'\] has 1500 NaN or infinite"),
    ):
        with pytest.raises(InputError, match=message):
            Fuse().fit(world.samples, world.wrong, s=world.s, inputs=bad)


def test_the_old_order_says_the_new_one(world):
    with pytest.raises(InputError, match=r"labels come second, fit\(samples, wrong, s=s\)"):
        Fuse().fit(world.samples, world.s)
    with pytest.raises(InputError, match=r"Turn graded correctness into 0/1"):
        Fuse().fit(world.samples, np.linspace(0, 1, 300))
    fitted = Fuse().fit(world)
    with pytest.raises(InputError, match=r"fit\(samples, wrong, s=s\)"):
        fitted.fit_threshold(world.samples, world.s)


@pytest.mark.parametrize("kind", [bool, int, float])
def test_labels_as_s_are_questioned(world, kind):
    labels = world.wrong.astype(kind)
    with pytest.raises(InputError, match=r"looks like labels: pass them as wrong=.*\{'name'"):
        Fuse().fit(world.samples, s=labels)
    named = Fuse().fit(world.samples, world.wrong, s={"has text": labels})
    assert named.model.statistics.names == ("has text",)
    Fuse().fit(world).score(world.samples[:2], s=[0.0, 1.0])  # two queries may well have those


def test_scores_belong_to_their_fit(tmp_path, fuse, world, new):
    x = fuse.score(new)
    assert x.fit == fuse.score(new.take(slice(5))).fit
    assert "fit" not in x.columns()
    other = Fuse(fuse.preset, normalize="none", seed=1, jitter=1e-6).fit(world)
    for use in (other.predict_proba, other.decide):
        with pytest.raises(InputError, match="another fit's"):
            use(x)
    with pytest.raises(InputError, match="s was given beside Scores"):
        fuse.decide(x, s=new.s)
    fuse.save(tmp_path / "fit")
    again = Fuse.load(tmp_path / "fit")
    np.testing.assert_array_equal(again.predict_proba(x), fuse.predict_proba(x))
    np.testing.assert_array_equal(again.decide(x).answer, fuse.decide(x).answer)
    with pytest.raises(NotFittedError):
        Fuse().predict_proba(x)


def test_clones_have_the_options_and_no_fit(tmp_path, world):
    given = Fuse("paper", alpha=1.0, rank=np.int64(7))
    copy = clone(given)
    assert copy.get_params() == given.get_params() == {"preset": "paper", "alpha": 1.0, "rank": 7}
    assert copy.options == given.options
    fitted = Fuse("paper", alpha=1.0).fit(world)
    with pytest.raises(NotFittedError):
        _ = clone(fitted).model
    fitted.save(tmp_path / "fit")
    loaded = Fuse.load(tmp_path / "fit")
    assert loaded.get_params() == {"preset": "paper", "alpha": 1.0}
    np.testing.assert_array_equal(clone(loaded).fit(world).model.u, fitted.model.u)


def test_set_params_validates_and_forgets_the_fit(world):
    fuse = Fuse(alpha=1.0).fit(world)
    assert fuse.set_params() is fuse
    assert fuse.model.alpha == 1.0
    for bad in ({"alpa": 2.0}, {"alpha": "best"}, {"preset": "papper"}):
        with pytest.raises(InputError):
            fuse.set_params(**bad)
    assert (fuse.model.alpha, fuse.get_params()["alpha"]) == (1.0, 1.0)
    assert fuse.set_params(preset="paper", z=1.5) is fuse
    assert fuse.get_params() == {"preset": "paper", "alpha": 1.0, "z": 1.5}
    assert fuse.options == dataclasses.replace(PRESETS["paper"], alpha=1.0, z=1.5)
    with pytest.raises(NotFittedError):
        _ = fuse.model


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0}, {"rank": 2.5}, {"shrinkage": 1.5}, {"jitter": -1e-8}, {"jitter": 1.0},
        {"z": np.nan}, {"alpha": [1.0]}, {"base_rate": 0.0}, {"threshold_share": -0.1},
        {"seed": -1}, {"normalize": "no"}, {"rule": None}, {"counted_in": "images"},
        {"kappa": "big"},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is .*expected"):
        Fuse(**options)


def test_samples_and_tables_are_frozen_copies(world):
    rows, logprobs = np.eye(3, 6), [np.array([-0.1]), np.array([-0.2]), np.array([-0.3])]
    one = Samples(["a", "b", "c"], logprobs, rows, "a", logprobs[0], np.eye(3), 6)
    before = one.fingerprint
    rows[0], logprobs[0][0] = 7.0, -9.0
    assert (one.embeddings[0, 0], one.token_logprobs[0][0], one.answer_logprobs[0]) == (
        1,
        -0.1,
        -0.1,
    )
    assert one.fingerprint == before
    for array in (one.embeddings, one.token_logprobs[0], one.answer_logprobs, one.gram):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0
    for thing, name in ((one, "texts"), (world, "wrong"), (Fuse().fit(world).score(world), "u")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)


def test_queries_of_the_fit_are_recognised(tmp_path, fuse, world, new, caplog):
    with caplog.at_level(logging.WARNING):
        known = Fuse(fuse.preset, normalize="none").fit(world)
        known.score(new)
    assert "were in the fit" not in caplog.text
    known.save(tmp_path / "fit")
    for one in (known, Fuse.load(tmp_path / "fit")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            one.decide([*new.samples[:10], *world.samples[:30]], s=[*new.s[:10], *world.s[:30]])
        told = [m for m in caplog.messages if "were in the fit" in m]
        assert len(told) == 1
        assert told[0].startswith("30 of 40 queries were in the fit: figures on them are optim")


def test_certain_answers_do_not_identify_a_query():
    """Of 1,500 near certainty, in single precision, some are equal by chance."""
    sure = [np.log1p(-np.random.default_rng(k).exponential(2e-5, 2)) for k in range(1500)]
    rows = [(np.float32(8.0 + row) - np.float32(8.0)).astype(np.float64) for row in sure]
    assert len({tuple(row) for row in rows}) < len(rows)
    said = [Samples(["yes"] * 3, [row] * 3, answer="yes", answer_logprobs=row) for row in rows]
    assert not any(one.fingerprint for one in said)
    unsure = [Samples(["no"], [[-0.7]], answer="yes", answer_logprobs=[r[0], -0.2]) for r in rows]
    found = [one.fingerprint for one in unsure]
    assert None not in found
    assert found == [one.fingerprint for one in unsure]


def test_texts_alone_do_not_identify_a_query(world, caplog):
    texts = [Samples(["yes"] * 5) for _ in range(300)]
    fuse = Fuse().fit(texts, world.wrong, s=world.s, extra={"entropy": world.columns["u"]})
    with caplog.at_level(logging.WARNING):
        fuse.score(texts[:5], s=world.s[:5], extra={"entropy": world.columns["u"][:5]})
    assert "were in the fit" not in caplog.text


def test_thresholds_from_queries_of_the_fit_have_no_guarantee(world, new, caplog):
    fuse = Fuse(normalize="none", threshold_share=0.0).fit(world)
    with caplog.at_level(logging.WARNING):
        assert fuse.threshold(risk=0.3).guaranteed_risk is None
    assert "saw the same labels: no risk is guaranteed" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert fuse.threshold(risk=0.3, rule="empirical").guaranteed_risk is None
    assert "guaranteed" not in caplog.text  # the empirical rule never promised
    fuse.fit_threshold(new)
    assert fuse.threshold(risk=0.35).guaranteed_risk == 0.35
    assert np.all(np.isfinite(fuse.risk_table().guaranteed_risk))
    with caplog.at_level(logging.WARNING):
        fuse.fit_threshold(world)
    assert "300 of 300 queries were in the fit, labels included" in caplog.text
    assert fuse.threshold(risk=0.3).guaranteed_risk is None
    # labels that the fit never saw may be those of its queries
    blind = Fuse(normalize="none").fit(dataclasses.replace(world, wrong=None))
    assert blind.fit_threshold(world).threshold(risk=0.3).guaranteed_risk == 0.3


def test_groups_have_their_own_method(world, new):
    groups = ["<b>", "other"] * 150
    fuse = Fuse(normalize="none").fit(world, groups=groups)
    assert isinstance(fuse.threshold(), fusevlm.thresholds.Threshold)
    each = fuse.group_thresholds(risk=0.35)
    decided = fuse.decide(new, risk=0.35, groups=["<b>"] * 80)
    assert decided.threshold == each
    theta = each.by_group["<b>"].threshold
    np.testing.assert_array_equal(decided.answer, fuse.score(new).u <= theta)
    assert "threshold of <b>" in repr(decided)
    assert "<b>" not in decided._repr_html_()
    again = Fuse(normalize="none", threshold_share=0.0).fit(world, groups=groups)
    promises = again.group_thresholds(risk=0.35).by_group.values()
    assert {t.guaranteed_risk for t in promises} == {None}
    with pytest.raises(InputError, match="groups has 3 entries; expected 80"):
        fuse.decide(new, groups=["<b>"] * 3)


def test_displays_are_short_true_and_escaped(fuse, new):
    x = fuse.score(new)
    decided = fuse.decide(x, risk=0.35)
    for thing, facts in (
        (fuse, [repr(fuse.preset), f"fitted on {fuse.model.n_calibration}", "logdet"]),
        (Fuse(), ["not fitted"]),
        (x, ["80 queries", f"{x.u.min():.3g} to {x.u.max():.3g}"]),
        (decided, [f"{decided.coverage:.1%}", decided.threshold.rule, "0.35"]),
        (new, ["80 queries", f"{new.wrong.mean():.1%}", "prior"]),
    ):
        text, page = repr(thing), thing._repr_html_()
        assert len(text.splitlines()) <= 8
        assert all(fact in text for fact in facts), text
        assert page.startswith("<table>")
        assert page.count("<tr>") == len(text.splitlines()) - 1
    few = Fuse().fit(new.samples[:12], new.wrong[:12])
    assert "fitted on 12 queries without labels; thresholds from 12 with labels" in repr(few)
    hostile = Fuse().fit(new.samples, new.wrong, s={"<script>": new.s})
    assert "<script>" in repr(hostile)
    assert "<script>" not in hostile._repr_html_()
    shut = Decisions(
        np.zeros(2, bool),
        np.zeros(2),
        np.zeros(2),
        ("nothing certified",) * 2,
        fuse.threshold(risk=0.001, rule="learn_then_test"),
    )
    assert "always abstain" in repr(shut)


def test_decisions_as_frames(fuse, new):
    decided = fuse.decide(new, risk=0.3)
    frame, table = decided.to_pandas(), decided.to_arrow()
    assert list(frame.columns) == table.column_names == ["u", "p_wrong", "answer", "reason"]
    np.testing.assert_array_equal(frame["answer"], decided.answer)
    assert len(decided) == len(frame) == 80


def test_the_only_statistic_of_a_table(world):
    np.testing.assert_array_equal(world.s, world.prior["s"])
    with pytest.raises(InputError, match="have 0"):
        _ = dataclasses.replace(world, prior={}).s
    with pytest.raises(InputError, match="have 2: a, b"):
        _ = dataclasses.replace(world, prior={"a": world.s, "b": world.s}).s
    assert isinstance(world, Queries)


def test_a_division_keeps_units_together_and_near_the_share():
    rng = np.random.default_rng(0)
    units = [f"u{k}" for k in rng.integers(0, 80, 400)]
    for share in (0.1, 0.5, 0.7):
        tune, apart = divide(units, share, seed=3)
        assert sorted([*tune, *apart]) == list(range(400))
        assert not {units[k] for k in tune} & {units[k] for k in apart}
        assert len(apart) / 400 == pytest.approx(share, abs=0.02)
    assert len(divide(units, 0.0, seed=3)[1]) == 0
    assert len(divide(["a", "a", "b"], 0.5, seed=3)[1]) == 0
    other = divide(units, 0.5, seed=4)[1]
    assert list(other) != list(divide(units, 0.5, seed=3)[1])


def test_queries_of_one_unit_are_never_separated(world):
    """Their labels would otherwise tell the weights of the thresholds' own queries."""
    units = [f"u{k // 4}" for k in range(len(world))]
    fuse = Fuse(normalize="none").fit(dataclasses.replace(world, units=units))
    plain = Fuse(normalize="none").fit(
        world.samples, world.wrong, s=world.s, inputs=world.inputs or None, units=units
    )
    kept = fuse._threshold_data
    assert 0 < len(kept.u) < len(world)
    assert len(kept.u) % 4 == 0
    np.testing.assert_array_equal(np.sort(kept.u), np.sort(plain._threshold_data.u))


def test_evidence_that_was_not_asked_of_all(world, new, caplog):
    """NaN is integrated out; a column that hardly any query has is left out, and said."""
    gaps = np.arange(len(world)) % 3 > 0
    strong = np.where(gaps, np.nan, world.wrong + 0.1 * np.cos(np.arange(len(world))))
    fuse = Fuse(normalize="none").fit(dataclasses.replace(world, evidence={"asked": strong}))
    later = np.where(np.arange(len(new)) % 2 > 0, np.nan, 1.0)
    found = fuse.score(dataclasses.replace(new, evidence={"asked": later}))
    assert np.all(found.shares["asked"][1::2] == 0.0)
    assert np.all(found.shares["asked"][::2] > 0.1)
    alone = dataclasses.replace(new.take([0]), evidence={"asked": [np.nan]})
    np.testing.assert_array_equal(fuse.score(alone).shares["asked"], 0.0)
    plain = Fuse(normalize="none").fit(world)
    for asked in (0, 12):
        rare = np.where(np.arange(len(world)) < asked, 1.0 * np.arange(len(world)), np.nan)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            other = Fuse(normalize="none").fit(dataclasses.replace(world, evidence={"asked": rare}))
        assert "too few to weigh it" in caplog.text
        given = dataclasses.replace(new, evidence={"asked": np.ones(len(new))})
        np.testing.assert_array_equal(other.score(given).u, plain.score(new).u)


def test_inputs_bring_a_competence_prior_with_a_variance_of_its_own(tmp_path):
    rng = np.random.default_rng(0)

    def table(size):
        x = rng.standard_normal((size, 6))
        wrong = x[:, 0] + 0.7 * rng.standard_normal(size) > 0.8
        weak = wrong + 1.5 * rng.standard_normal(size)
        said = [Samples(["a"], answer="a", answer_logprobs=[-v]) for v in np.exp(weak)]
        return said, wrong, x

    said, wrong, x = table(900)
    fuse = Fuse().fit(said, wrong, inputs=x)
    assert fuse.model.vector.prior_names == ("competence",)
    later, truth, y = table(2000)
    plain = Fuse(competence=False).fit(said, wrong, inputs=x)
    gain = metrics.auroc(fuse.score(later, inputs=y).u, truth)
    assert gain > metrics.auroc(plain.score(later, inputs=y).u, truth) + 0.1
    near, far = (fuse.score(later[:5], inputs=scale * y[:5]) for scale in (1.0, 50.0))
    assert np.all(far.sigma0 > near.sigma0)
    assert np.all(far.prior_weight < near.prior_weight)
    without = fuse.score(later)
    np.testing.assert_allclose(without.m0, 0.0)
    fuse.save(tmp_path / "fit")
    again = Fuse.load(tmp_path / "fit")
    np.testing.assert_array_equal(again.score(later, inputs=y).u, fuse.score(later, inputs=y).u)
