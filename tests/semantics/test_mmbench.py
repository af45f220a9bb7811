"""The benchmark on real answer distributions: published figures first, then a small run."""

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks import mmbench
from scipy.special import log_softmax, softmax
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

from fusevlm import metrics

MODEL = "llava-v1.5-13b"


@pytest.fixture(scope="module")
def bench():
    folder = os.environ.get("FUSEVLM_TEST_DATA")
    if not folder:
        pytest.skip("FUSEVLM_TEST_DATA is not set: no MMBench logits")
    return mmbench.load(Path(folder) / mmbench.FOLDER)


@pytest.fixture(scope="module")
def judged(bench):
    log_p = mmbench.log_softmax(bench.logits[MODEL])
    return log_p, log_p.argmax(axis=1) != bench.gold


def test_the_published_figures_of_llava_13b(judged):
    """Softmax over all six options, wrong where the likeliest is not the right one."""
    log_p, wrong = judged
    assert f"{metrics.base_accuracy(mmbench.entropy(log_p), wrong):.4f}" == "0.7496"
    assert f"{metrics.auroc(mmbench.entropy(log_p), wrong):.3f}" == "0.854"
    assert f"{metrics.ece(1.0 - np.exp(log_p.max(axis=1)), wrong):.4f}" == "0.0889"


def test_four_options_would_not_give_them(bench):
    """The figures do tell the conventions apart."""
    log_p = mmbench.log_softmax(bench.logits[MODEL][:, :4])
    wrong = log_p.argmax(axis=1) != bench.gold
    assert f"{1 - wrong.mean():.4f}" == "0.7633"


def test_probabilities_and_entropy_are_scipys(bench, judged):
    log_p, _ = judged
    logits = bench.logits[MODEL]
    np.testing.assert_allclose(log_p, log_softmax(logits, axis=1), atol=1e-12)
    np.testing.assert_allclose(
        mmbench.entropy(log_p), entropy(softmax(logits, axis=1), axis=1), atol=1e-12
    )


def test_draws_follow_the_distribution(judged):
    log_p = judged[0][:50]
    drawn = mmbench.draw(log_p, 4000, seed=0)
    frequency = np.stack([(drawn == k).mean(axis=1) for k in range(6)], axis=1)
    p = np.exp(log_p)
    # 300 cells: five standard errors, and one draw where p is tiny
    assert (np.abs(frequency - p) <= 5 * np.sqrt(p * (1 - p) / 4000) + 1 / 4000).all()
    np.testing.assert_array_equal(drawn, mmbench.draw(log_p, 4000, seed=0))
    assert (drawn != mmbench.draw(log_p, 4000, seed=1)).any()


def test_a_question_and_its_copies_stay_on_one_side(bench):
    fit = mmbench.calibration_rows(bench.question, seed=0)
    inside = np.isin(np.arange(len(bench.question)), fit)
    assert 0.15 < inside.mean() < 0.25
    for name in np.unique(bench.question[fit]):
        assert inside[bench.question == name].all()


def test_a_small_run_prints_its_tables(bench, tmp_path, capsys):
    folder = Path(os.environ["FUSEVLM_TEST_DATA"]) / mmbench.FOLDER
    cache = tmp_path / "vectors.npz"
    texts = sorted({text for row in bench.options[:150] for text in row})
    rows = np.random.default_rng(0).standard_normal((len(texts) - 3, 384))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.savez(
        cache, texts=np.array(texts[3:]), vectors=rows.astype(np.float32)
    )  # three are left to encode
    arguments = ["--data", str(folder), "--limit", "150", "--n", "6", "--models", MODEL]
    assert mmbench.main([*arguments, "--cache", str(cache)]) == 0
    first = capsys.readouterr().out
    head, _, row, mean = first.split("\n\n")[0].splitlines()
    names, values = head.strip("| ").split(" | "), row.strip("| ").split(" | ")
    assert len(names) == len(values) == len(mean.strip("| ").split(" | "))
    found = dict(zip(names, values, strict=True))
    # the full distribution's entropy, on the same rows, by scipy and sklearn
    p = softmax(bench.logits[MODEL][:150], axis=1)
    wrong = p.argmax(axis=1) != bench.gold[:150]
    rest = np.delete(np.arange(150), mmbench.calibration_rows(bench.question[:150], seed=0))
    auroc = roc_auc_score(wrong[rest], entropy(p[rest], axis=1))
    assert found[mmbench.FULL] == f"{auroc:.4f}"
    assert found["accuracy"] == f"{1 - wrong[rest].mean():.4f}"
    kept = np.load(cache)
    assert sorted(kept["texts"]) == texts
    np.testing.assert_allclose(np.linalg.norm(kept["vectors"], axis=1), 1.0, atol=1e-6)
    assert mmbench.main([*arguments, "--cache", str(cache)]) == 0
    assert capsys.readouterr().out == first


def test_unknown_models_and_folders_are_refused(bench, tmp_path, capsys):
    folder = str(Path(os.environ["FUSEVLM_TEST_DATA"]) / mmbench.FOLDER)
    with pytest.raises(SystemExit):
        mmbench.main(["--data", folder, "--models", "gpt"])
    assert "no logits of gpt" in capsys.readouterr().err
    with pytest.raises(mmbench.ArtefactError, match="Name the folder"):
        mmbench.load(tmp_path)
