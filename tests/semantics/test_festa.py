"""The benchmark of the negated question on made-up models whose AUROC is known."""

import json

import numpy as np
import pytest
from benchmarks import festa
from sklearn.metrics import roc_auc_score

from fusevlm.errors import ArtefactError, InputError

OTHER = {"A": "B", "B": "A"}


def write(folder, *, n=60, changes=12, samples=3, models=("one", "two"), seed=0):
    """Statements whose wrong answers are kept under negation, and otherwise repeated alike."""
    rng = np.random.default_rng(seed)
    files = {"equivalent": [], "complementary": []}
    for model in models:
        for k in range(n):
            answer, wrong = str(rng.choice(["A", "B"])), bool(rng.random() < 0.4)
            for kind, rows in files.items():
                repeats = 0.8 if kind == "equivalent" else (0.7 if wrong else 0.2)
                said = np.where(rng.random((changes, samples)) < repeats, answer, OTHER[answer])
                variants = [{"samples": row.tolist()} for row in said]
                # the negated statement's own greedy answer and label are not to be used
                rows.append({"id": f"s{k}", "model": model, "variants": variants,
                             "answer": answer if kind == "equivalent" else "?",
                             "wrong": wrong if kind == "equivalent" else None})  # fmt: skip
    for kind, rows in files.items():
        (folder / f"{kind}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return files


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def test_what_is_read(tmp_path):
    files = write(tmp_path, n=4)
    found = festa.load(tmp_path)
    assert list(found) == ["one", "two"]
    for row, other in zip(files["equivalent"], files["complementary"], strict=True):
        model, k = found[row["model"]], int(row["id"][1:])
        assert model.wrong[k] == row["wrong"]
        assert model.same[k, 3, 1] == (row["variants"][3]["samples"][1] == row["answer"])
        assert model.kept[k, 5, 2] == (other["variants"][5]["samples"][2] == row["answer"])


def test_a_draw_takes_one_sample_of_each_of_ten_changes():
    """Each change repeats in one statement only where its number says so."""
    V = 12
    only = np.zeros((500, V, 2), dtype=bool)
    only[:, 0] = True
    drawn = festa._drawn(only, 10, np.random.default_rng(0))
    assert drawn.shape == (500, 10)
    assert set(drawn.sum(axis=1)) == {0.0, 1.0}  # a change is not drawn twice
    assert drawn.sum() / 500 == pytest.approx(10 / V, abs=0.06)
    with pytest.raises(InputError, match="20 changes are wanted of a statement that has 12"):
        festa._drawn(only, 20, np.random.default_rng(0))


def test_scores_by_hand():
    """All samples of a statement say the same, so nothing is left to the draw."""
    same = np.ones((3, 10, 2), dtype=bool)
    same[1] = False
    kept = np.zeros((3, 10, 2), dtype=bool)
    kept[2] = True
    found = festa.scores(festa.Model(np.zeros(3, bool), same, kept), np.random.default_rng(0))
    assert found["equivalent"].tolist() == [0.0, 1.0, 0.0]
    assert found["negated"].tolist() == [0.0, 0.0, 1.0]
    assert found["both"].tolist() == [0.0, 0.5, 0.5]


def test_auroc_is_sklearns_and_the_interval_a_plain_bootstrap(folder):
    models = festa.load(folder)
    found = festa.measure(models, draws=1, seed=3, boot=400)
    rng = np.random.default_rng(3)
    N = 60
    counts = rng.multinomial(N, np.full(N, 1 / N), size=400)
    drawn = {name: festa.scores(model, rng) for name, model in models.items()}
    for name, model in models.items():
        for score, u in drawn[name].items():
            assert found.auroc[name][score] == pytest.approx(roc_auc_score(model.wrong, u))
    gaps = []
    for row in counts:
        index = np.repeat(np.arange(N), row)
        gaps.append(np.mean([
            roc_auc_score(m.wrong[index], drawn[n]["both"][index])
            - roc_auc_score(m.wrong[index], drawn[n]["equivalent"][index])
            for n, m in models.items()
        ]))  # fmt: skip
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(gaps, [2.5, 97.5])))
    assert found.low < found.difference < found.high


@pytest.mark.parametrize(("part", "size"), [("dev", 50), ("confirm", 10)])
def test_both_parts_from_the_command_line(folder, part, size, capsys, monkeypatch):
    (folder / festa.FOLDER).mkdir()
    write(folder / festa.FOLDER)
    monkeypatch.setenv("FUSEVLM_TEST_DATA", str(folder))
    assert festa.main(["--part", part, "--draws", "3"]) == 0
    out = capsys.readouterr().out
    assert f"{part}: {size} statements, 3 draws" in out
    mean = next(line for line in out.splitlines() if "mean" in line)
    equivalent, both, negated = (float(x) for x in mean.split("|")[3:6])
    assert both > equivalent + 0.1  # only negation tells wrong from right here
    assert negated > 0.8
    assert "both − equivalent: +" in out
    assert festa.main(["--part", part, "--draws", "3"]) == 0
    assert capsys.readouterr().out == out


def test_parts_do_not_overlap(folder):
    models = festa.load(folder)
    dev, confirm = (models["one"].part(festa.PARTS[p]) for p in ("dev", "confirm"))
    np.testing.assert_array_equal(np.r_[dev.wrong, confirm.wrong], models["one"].wrong)
    assert len(dev.wrong) == 50


def test_bad_folders(folder, tmp_path, monkeypatch):
    with pytest.raises(ArtefactError, match="Name the folder with --data"):
        festa.load(tmp_path / "none")
    lines = (folder / "complementary.jsonl").read_text().splitlines()
    (folder / "complementary.jsonl").write_text("\n".join(lines[:-1]))
    with pytest.raises(ArtefactError, match="statements of two are not those of the others"):
        festa.load(folder)
    monkeypatch.delenv("FUSEVLM_TEST_DATA", raising=False)
    with pytest.raises(SystemExit):
        festa.main([])
