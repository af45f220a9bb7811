"""The public class: identities between its columns, labels and no labels, saving and loading."""

import json
import logging

import numpy as np
import pytest
from scipy import stats

import fusevlm
from fusevlm import Fuse, Samples, metrics, simulate
from fusevlm.errors import ArtefactError, InputError, NotFittedError
from fusevlm.fuse.kept import candidates
from fusevlm.maths.wishart import wishart_moments

COLUMNS = [
    "m0", "sigma0", "evidence", "intercept", "tau2", "m_post", "sigma_post", "u", "prior_weight",
]  # fmt: skip


@pytest.fixture(scope="module")
def held_out():
    return simulate.queries(250, n_samples=8, d=24, seed=4)


@pytest.fixture(scope="module", params=["paper", "practical"])
def fitted(request, world):
    return Fuse(request.param, normalize="none").fit(world.samples, world.wrong, s=world.s)


def test_promised_columns_are_finite_arrays(fitted, held_out):
    scores = fitted.score(held_out.samples, s=held_out.s)
    for name in COLUMNS:
        values = getattr(scores, name)
        assert values.shape == (250,)
        assert np.all(np.isfinite(values)), name
    assert len(scores) == 250


def test_posterior_columns_follow_from_the_others(fitted, held_out):
    """Conditioning the joint Gaussian of (u, evidence), column by column."""
    x = fitted.score(held_out.samples, s=held_out.s)
    covariance = x.slope * x.sigma0**2
    total = x.slope**2 * x.sigma0**2 + x.tau2
    mean = x.m0 + covariance / total * (x.evidence - x.intercept - x.slope * x.m0)
    variance = x.sigma0**2 - covariance**2 / total
    np.testing.assert_allclose(x.m_post, mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(x.sigma_post**2, variance, rtol=1e-5)
    shares = sum(x.shares.values())
    np.testing.assert_allclose(shares + x.prior_weight, 1.0, rtol=1e-10)


def test_frames_carry_every_column(fitted, held_out):
    scores = fitted.score(held_out.samples, s=held_out.s)
    frame, table = scores.to_pandas(), scores.to_arrow()
    assert set(COLUMNS) <= set(frame.columns)
    assert list(frame.columns) == table.column_names
    np.testing.assert_array_equal(frame["u"], scores.u)
    assert "evidence_logdet" in table.column_names


def test_order_of_samples_and_of_queries_does_not_matter(fitted, held_out):
    rng = np.random.default_rng(0)
    shuffled = []
    for q in held_out.samples[:20]:
        order = rng.permutation(len(q))
        shuffled.append(
            Samples(
                [q.texts[i] for i in order],
                [q.token_logprobs[i] for i in order],
                q.embeddings[order],
                q.answer,
                q.answer_logprobs,
            )
        )
    plain = fitted.score(held_out.samples[:20], s=held_out.s[:20]).u
    np.testing.assert_allclose(fitted.score(shuffled, s=held_out.s[:20]).u, plain, rtol=1e-8)
    back = fitted.score(held_out.samples[:20][::-1], s=held_out.s[:20][::-1]).u[::-1]
    np.testing.assert_allclose(back, plain, rtol=1e-10)


@pytest.mark.parametrize("normalize", ["before", "after", "none"])
def test_paper_evidence_is_the_literal_formula(world, held_out, normalize):
    """Ṽ, a_w and τ² of one query typed out in linear algebra from the fitted Σ_r."""

    def directions(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    fuse = Fuse("paper", normalize=normalize, alpha=0.7, shrinkage=0.3)
    fuse.fit(world.samples, world.wrong, s=world.s)
    rows = np.concatenate([q.embeddings for q in world.samples])
    rows = directions(rows) if normalize == "before" else rows
    S = np.cov(rows, rowvar=False, ddof=0)
    S /= np.trace(S) / 24
    Sigma = 0.7 * S + 0.3 * np.eye(24)
    q = held_out.samples[0]
    own = directions(q.embeddings) if normalize == "before" else q.embeddings
    values, vectors = np.linalg.eigh(Sigma)
    R = (own - rows.mean(axis=0)) @ (vectors / np.sqrt(values)) @ vectors.T
    R = directions(R) if normalize == "after" else R
    p = np.array([np.exp(np.mean(t)) for t in q.token_logprobs])
    w = np.exp(2 * 0.7 * (1 - p))
    G = R @ R.T
    W = np.diag(np.sqrt(w))
    V = np.linalg.slogdet(W @ (G + 1e-8 * np.trace(G) / 8 * np.eye(8)) @ W)[1]
    a0, v = wishart_moments(24, 8)
    delta = w / w.mean() - 1
    a_w = a0 + 8 * np.log(w.mean()) - np.sum(delta**2) / 2
    x = fuse.score(held_out.samples[:1], s=held_out.s[:1])
    assert x.evidence[0] == pytest.approx(V, rel=1e-9)
    assert x.intercept[0] == pytest.approx(a_w, rel=1e-9)
    assert x.tau2[0] == pytest.approx(v)
    assert x.jitter[0] == pytest.approx(1e-8 * np.trace(G) / 8)


def test_practical_probability_is_the_tail_of_the_posterior(world, held_out):
    fuse = Fuse(normalize="none", probability="model").fit(world.samples, world.wrong, s=world.s)
    x = fuse.score(held_out.samples, s=held_out.s)
    p = fuse.predict_proba(held_out.samples, s=held_out.s)
    np.testing.assert_allclose(p, stats.norm.sf(fuse.model.vector.t, x.m_post, x.sigma_post))
    np.testing.assert_array_equal(p, fuse.predict_proba(x))
    assert metrics.ece(p, held_out.wrong, n_bins=5) < 0.12


@pytest.mark.parametrize("noise", ["jackknife", "split_half", "tempered", "ols"])
@pytest.mark.parametrize("intercept", ["a0", "taylor", "exact", "fitted"])
def test_every_scalar_variant_runs_and_ranks(world, held_out, noise, intercept):
    fuse = Fuse("paper", normalize="none", noise=noise, intercept=intercept, alpha="spread")
    fuse.fit(world.samples[:150], world.wrong[:150], s=world.s[:150])
    x = fuse.score(held_out.samples, s=held_out.s)
    assert np.all(np.isfinite(x.u))
    assert metrics.auroc(x.u, held_out.wrong) > 0.55


@pytest.mark.parametrize("whitening", ["exact", "low_rank", "pca", "none"])
@pytest.mark.parametrize("center", ["global", "query", "none"])
def test_every_geometry_runs(world, held_out, whitening, center):
    fuse = Fuse(whitening=whitening, center=center, rank=5, alpha=0.5, normalize="none")
    fuse.fit(world.samples, world.wrong, s=world.s)
    x = fuse.score(held_out.samples, s=held_out.s)
    assert np.all(np.isfinite(x.u))
    assert np.corrcoef(x.parts["logdet"], held_out.columns["u"])[0, 1] > 0.8


def test_pca_with_more_samples_than_directions_uses_the_direction_scatter(world, held_out):
    fuse = Fuse("paper", whitening="pca", rank=5, intercept="a0", normalize="none",
                more_samples_than_features="d_scatter").fit(world.samples, s=world.s)  # fmt: skip
    x = fuse.score(held_out.samples, s=held_out.s)
    np.testing.assert_array_equal(x.slope, 5.0)
    strict = Fuse("paper", whitening="pca", rank=5)
    with pytest.raises(InputError, match=r"n=8 samples in d=5 dimensions.*d_scatter"):
        strict.fit(world.samples, s=world.s)


def test_fitted_intercept_centres_the_evidence(world):
    fuse = Fuse("paper", intercept="fitted", normalize="none").fit(world.samples, s=world.s)
    x = fuse.score(world.samples, s=world.s)
    assert np.mean((x.evidence - x.intercept) / x.slope) == pytest.approx(0.0, abs=1e-9)


def test_exact_intercept_scores_like_unweighted(world, held_out):
    weighted = Fuse("paper", intercept="exact", alpha=3.0).fit(
        world.samples, world.wrong, s=world.s
    )
    plain = Fuse("paper", intercept="a0", alpha=0.0).fit(world.samples, world.wrong, s=world.s)
    np.testing.assert_allclose(
        weighted.score(held_out.samples, s=held_out.s).u,
        plain.score(held_out.samples, s=held_out.s).u,
        rtol=1e-8,
    )


def test_evidence_only_says_so(world, held_out, caplog):
    for preset in ("paper", "practical"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            fuse = Fuse(preset, normalize="none").fit(world.samples, world.wrong)
        assert "rest on the evidence only" in caplog.text
        x = fuse.score(held_out.samples)
        assert np.all(np.isfinite(x.u))
        with pytest.raises(InputError, match="the prior was never calibrated"):
            fuse.score(held_out.samples, s=held_out.s)
    paper = Fuse("paper", normalize="none").fit(world.samples).score(held_out.samples)
    np.testing.assert_array_equal(paper.prior_weight, 0.0)
    np.testing.assert_allclose(paper.m_post, (paper.evidence - paper.intercept) / paper.slope)


def test_s_can_be_left_out_of_single_scorings(world, held_out, caplog):
    fuse = Fuse(normalize="none").fit(world.samples, world.wrong, s=world.s)
    with caplog.at_level(logging.WARNING):
        x = fuse.score(held_out.samples)
    assert "rest on the evidence only" in caplog.text
    np.testing.assert_allclose(x.m0, 0.0)
    np.testing.assert_allclose(x.sigma0, 1.0)


def test_an_inert_prior_is_announced(caplog):
    world = simulate.queries(200, n_samples=20, d=64, seed=1)
    with caplog.at_level(logging.WARNING):
        Fuse("paper", normalize="none", alpha="median").fit(world.samples, world.wrong, s=world.s)
    assert "fusion is a no-op" in caplog.text
    assert "remainder |R_w| exceeds" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Fuse(normalize="none").fit(world.samples, world.wrong, s=world.s)
    assert "no-op" not in caplog.text


def test_a_prior_that_takes_over_is_announced(world, caplog):
    """Evidence that is a line in s leaves the prior no variance of its own."""
    rows = world.samples[0].embeddings
    lined = [
        Samples(q.texts, q.token_logprobs, np.exp(0.1 * s) * rows, q.answer, q.answer_logprobs)
        for q, s in zip(world.samples, world.s, strict=True)
    ]
    with caplog.at_level(logging.WARNING):
        fuse = Fuse("paper", normalize="none", alpha=0.0, center="none").fit(lined, s=world.s)
    assert "above 99 %" in caplog.text
    x = fuse.score(lined, s=world.s)
    np.testing.assert_allclose(x.m_post, x.m0)


def test_label_free_fit_ranks_but_has_no_probability_or_threshold(world, held_out):
    fuse = Fuse(normalize="none").fit(world.samples, s=world.s)
    x = fuse.score(held_out.samples, s=held_out.s)
    assert metrics.auroc(x.u, held_out.wrong) > 0.7
    with pytest.raises(NotFittedError, match="P\\(wrong\\) needs labels"):
        fuse.predict_proba(x)
    with pytest.raises(NotFittedError, match="a threshold needs labels"):
        fuse.decide(x)
    told = Fuse(normalize="none", base_rate=0.3).fit(world.samples, s=world.s)
    assert told.predict_proba(held_out.samples, s=held_out.s).mean() == pytest.approx(0.3, abs=0.1)
    fuse.fit_threshold(held_out.samples, held_out.wrong, s=held_out.s)
    assert fuse.decide(x, risk=0.3).coverage > 0


def test_extra_evidence_enters_by_name(world, held_out):
    rng = np.random.default_rng(0)
    strong = world.wrong + 0.3 * rng.standard_normal(300)
    fuse = Fuse(normalize="none").fit(
        world.samples, world.wrong, s=world.s, extra={"semantic_entropy": strong}
    )
    new = held_out.wrong + 0.3 * rng.standard_normal(250)
    x = fuse.score(held_out.samples, s=held_out.s, extra={"semantic_entropy": new})
    assert set(x.parts) == {"surprisal", "log_surprisal", "logdet", "semantic_entropy"}
    assert x.shares["semantic_entropy"][0] > x.shares["logdet"][0]
    assert metrics.auroc(x.u, held_out.wrong) > 0.97
    with pytest.raises(InputError, match="'semantic_entropy', which these queries lack"):
        fuse.score(held_out.samples, s=held_out.s)


def test_black_box_samples_work_with_what_they_have(world, caplog):
    texts = [Samples(q.texts) for q in world.samples]
    entropy = world.columns["u"] + 0.3
    with caplog.at_level(logging.WARNING):
        fuse = Fuse().fit(texts, world.wrong, s=world.s, extra={"semantic_entropy": entropy})
    assert "no embeddings" in caplog.text
    assert "no answer_logprobs" in caplog.text
    x = fuse.score(texts, s=world.s, extra={"semantic_entropy": entropy})
    assert metrics.auroc(x.u, world.wrong) > 0.75
    assert np.all(np.isnan(x.jitter))
    with pytest.raises(InputError, match="carry no evidence"):
        Fuse().fit(texts, world.wrong, s=world.s)
    with pytest.raises(InputError, match="scalar fusion needs embeddings"):
        Fuse("paper").fit(texts, s=world.s)


@pytest.mark.parametrize("rule", ["learn_then_test", "clopper_pearson", "paper_bound", "empirical"])
def test_decisions_follow_the_threshold(world, held_out, rule):
    fuse = Fuse(normalize="none").fit(world.samples, world.wrong, s=world.s)
    x = fuse.score(held_out.samples, s=held_out.s)
    decided = fuse.decide(held_out.samples, s=held_out.s, risk=0.3, delta=0.1, rule=rule)
    np.testing.assert_array_equal(decided.answer, x.u <= decided.threshold.threshold)
    np.testing.assert_array_equal(decided.abstain, ~decided.answer)
    assert decided.coverage == pytest.approx(decided.answer.mean())
    assert decided.threshold.rule == rule


def test_practical_thresholds_never_see_the_tuning_queries(world):
    fuse = Fuse(normalize="none").fit(world.samples, world.wrong, s=world.s)
    assert fuse.model.n_calibration == 150
    assert fuse.threshold().n_calibration == 150
    paper = Fuse("paper", normalize="none").fit(world.samples, world.wrong, s=world.s)
    assert (paper.model.n_calibration, paper.threshold().n_calibration) == (300, 300)


def test_the_whole_pipeline_keeps_its_promise():
    """Fit once; many threshold sets; the risk on a large population exceeds 0.25 in ≤ δ."""
    fit = simulate.queries(400, n_samples=6, d=16, seed=10)
    population = simulate.queries(6000, n_samples=6, d=16, seed=11)
    fuse = Fuse(normalize="none").fit(fit.samples, fit.wrong, s=fit.s)
    u = fuse.score(population.samples, s=population.s).u
    rng = np.random.default_rng(0)
    missed, repetitions = 0, 1000
    for _ in range(repetitions):
        chosen = rng.integers(0, 6000, 250)
        theta = fusevlm.fuse.thresholds.learn_then_test(
            u[chosen],
            population.wrong[chosen],
            risk=0.25,
            delta=0.1,
            grid=candidates(fuse.model, fuse.options, 250, 0.25, 0.1),
        ).threshold
        answered = population.wrong[u <= theta]
        missed += len(answered) > 0 and answered.mean() > 0.25
    assert missed / repetitions <= 0.1 + 3 * np.sqrt(0.09 / repetitions)


def test_thresholds_per_group(world, held_out):
    groups = np.where(np.arange(300) % 2, "number", "other")
    fuse = Fuse(normalize="none", threshold_share=0.6)
    fuse.fit(world.samples, world.wrong, s=world.s, groups=groups)
    names = np.where(np.arange(250) % 2, "number", "other")
    decided = fuse.decide(held_out.samples, s=held_out.s, risk=0.4, groups=names)
    assert set(decided.threshold.by_group) == {"number", "other"}
    assert decided.threshold.by_group["number"].delta == pytest.approx(0.05)
    with pytest.raises(InputError, match="groups has 2 entries"):
        fuse.fit(world.samples, world.wrong, s=world.s, groups=["a", "b"])
    plain = Fuse(normalize="none").fit(world.samples, world.wrong, s=world.s)
    with pytest.raises(NotFittedError, match="no groups"):
        plain.decide(held_out.samples, s=held_out.s, groups=names)


def test_risk_table(fitted):
    table = fitted.risk_table(n_rows=5)
    assert np.all(np.diff(table.coverage) > 0)
    if fitted.preset == "paper":  # all queries for everything: nothing is guaranteed
        assert table.guaranteed_risk is None
        assert {row["guaranteed_risk"] for row in table.rows()} == {None}
    else:
        assert np.all(table.guaranteed_risk >= table.empirical_risk)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"whitening": "low_rank", "rank": 4},
        {"whitening": "pca", "rank": 6},
        {"whitening": "none"},
        {"probability": "platt"},
        {"probability": "isotonic"},
    ],
)
@pytest.mark.parametrize("preset", ["paper", "practical"])
def test_saved_and_loaded_is_the_same(tmp_path, world, held_out, preset, options):
    if preset == "paper" and options.get("rank") == 6:
        options = {**options, "more_samples_than_features": "d_scatter", "intercept": "a0"}
    fuse = Fuse(preset, **options)
    fuse.fit(world.samples, world.wrong, s=world.s, groups=["a", "b", "c"] * 100)
    fuse.save(tmp_path / "fit")
    again = Fuse.load(tmp_path / "fit")
    one, two = (f.score(held_out.samples, s=held_out.s) for f in (fuse, again))
    for name, values in one.columns().items():
        np.testing.assert_array_equal(values, two.columns()[name], err_msg=name)
    np.testing.assert_array_equal(fuse.predict_proba(one), again.predict_proba(two))
    assert fuse.threshold() == again.threshold()
    assert again.options == fuse.options
    assert "fitted on" in repr(again)


def test_foreign_and_damaged_folders_are_refused(tmp_path, world, monkeypatch):
    fuse = Fuse(normalize="none").fit(world.samples, world.wrong, s=world.s)
    folder = tmp_path / "fit"
    with pytest.raises(ArtefactError, match="holds no complete"):
        Fuse.load(folder)
    fuse.save(folder)
    manifest, (arrays,) = folder / "fuse.json", folder.glob("arrays-*.safetensors")
    head = json.loads(manifest.read_text())

    del head["sha256"]  # as older ones are

    def rewrite(**changes):
        manifest.write_text(json.dumps({**head, **changes}))

    rewrite(schema_version=99)
    with pytest.raises(ArtefactError, match=r"schema version 99.*Upgrade fusevlm"):
        Fuse.load(folder)
    rewrite(schema_version=0)
    with pytest.raises(ArtefactError, match=r"schema version 0.*Refit"):
        Fuse.load(folder)
    monkeypatch.setattr(
        "fusevlm.fuse.estimator.MIGRATIONS", {0: lambda old: {**old, "schema_version": 5}}
    )
    assert isinstance(Fuse.load(folder), Fuse)
    rewrite(kind="somebody's")
    with pytest.raises(ArtefactError, match=r"not a fusevlm.Fuse"):
        Fuse.load(folder)
    manifest.write_text("{")
    with pytest.raises(ArtefactError, match="cannot be read"):
        Fuse.load(folder)
    rewrite(content={"type": "Popen", "fields": {}})
    with pytest.raises(ArtefactError, match="damaged"):
        Fuse.load(folder)
    rewrite()
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtefactError, match="truncated"):
        Fuse.load(folder)


def test_an_interrupted_save_leaves_the_old_fit(tmp_path, world, monkeypatch):
    fuse = Fuse(normalize="none").fit(world.samples, world.wrong, s=world.s)
    fuse.save(tmp_path / "fit")
    names = sorted(p.name for p in (tmp_path / "fit").iterdir())

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(ArtefactError, match="No space left on device"):
        fuse.save(tmp_path / "fit")
    monkeypatch.undo()
    assert isinstance(Fuse.load(tmp_path / "fit"), Fuse)
    assert sorted(p.name for p in (tmp_path / "fit").iterdir()) == names


def test_same_seed_same_numbers(world, held_out):
    one, two = (
        Fuse(seed=5)
        .fit(world.samples, world.wrong, s=world.s)
        .score(held_out.samples, s=held_out.s)
        .u
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, two)


def test_options_are_checked_by_name_and_value():
    with pytest.raises(InputError, match=r"unknown option 'jiter'. Did you mean 'jitter'"):
        Fuse(jiter=1e-6)
    with pytest.raises(InputError, match="'practical', 'paper'"):
        Fuse("papper")
    with pytest.raises(InputError, match="whitening is 'zca'"):
        Fuse(whitening="zca")
    with pytest.raises(InputError, match="belongs to the vector fusion"):
        Fuse("paper", probability="model")
    with pytest.raises(InputError, match="threshold_share"):
        Fuse(threshold_share=1.0)


def test_simulation_is_the_papers_model():
    """Whitened with the true Σ_r, responses are N(0, e^u I): û is unbiased for u."""
    big = simulate.queries(2000, n_samples=10, d=40, seed=1)
    fuse = Fuse("paper", normalize="none", alpha=0.0, intercept="fitted").fit(big.samples, s=big.s)
    x = fuse.score(big.samples, s=big.s)
    u = big.columns["u"]
    gap = (x.evidence - x.intercept) / x.slope - (u - u.mean())
    assert abs(gap.mean()) < 0.01
    assert gap.std() == pytest.approx(np.sqrt(wishart_moments(40, 10)[1]) / 10, rel=0.1)
