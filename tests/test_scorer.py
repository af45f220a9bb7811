"""Fits on samples that are already there, through the API and the command line."""

import csv
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.test_sampled import LOGS

from fusevlm import Scorer
from fusevlm.cli import main
from fusevlm.data.sampled import Sampled, read_sampled
from fusevlm.errors import ArtefactError, InputError
from fusevlm.semantics import inference
from fusevlm.store.tables import read_table
from fusevlm.testing import tiny, tiny_helpers
from fusevlm.types import Query, Samples

TOPICS = {"cats": 0.9, "rivers": 0.6, "tensors": 0.2}  # how often the model is right


def world(size, seed, *, logprobs=False, complement=False):
    """Rows of a model that knows some topics better than others; all of it as a table has it."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(size):
        topic = list(TOPICS)[k % 3]
        right = rng.random() < TOPICS[topic]
        share = np.clip(rng.normal(0.85 if right else 0.55, 0.15), 0.05, 1.0)
        said = ["yes" if rng.random() < share else f"no{rng.integers(3)}" for _ in range(10)]
        row = {
            "id": f"q{seed}-{k}", "question": f"what is known of {topic} number {k % 7}?",
            "samples": said, "answer": "yes", "wrong": bool(not right),
        }  # fmt: skip
        if logprobs:
            scale = 0.2 if right else 0.8
            row["logprobs"] = [[-float(rng.exponential(scale))] for _ in said]
            row["answer_logprobs"] = [-float(rng.exponential(scale))]
        if complement and k % 2 == 0:
            row["complement"] = float(np.clip(rng.normal(0.2 if right else 0.7, 0.2), 0, 1))
        rows.append(row)
    return rows


def save(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def read(tmp_path, rows):
    return read_sampled(save(tmp_path / "rows.jsonl", rows))


def test_evidence_is_what_the_samples_say(tmp_path):
    rows = read(tmp_path, world(60, 1, complement=True))
    found = Scorer.fit(rows, towers="none").table(rows)
    assert list(found.evidence) == ["disagreement", "meaning_entropy"]
    for row, apart, entropy in zip(rows, *found.evidence.values(), strict=True):
        texts = row.samples.texts
        assert apart == pytest.approx(np.mean([text != "yes" for text in texts]))
        shares = [texts.count(text) / len(texts) for text in set(texts)]
        assert entropy == pytest.approx(-sum(p * np.log(p) for p in shares))


def test_the_complement_and_the_samples_count_together(tmp_path):
    rows = read(tmp_path, world(80, 2, complement=True))
    scorer = Scorer.fit(rows, towers="none", evidence=["complement"])
    found = scorer.table(rows)
    assert list(found.evidence) == ["inconsistency", "complement", "meaning_entropy"]
    for k, row in enumerate(rows):
        apart = np.mean([text != "yes" for text in row.samples.texts])
        other = row.number("complement")
        both = apart if np.isnan(other) else (apart + other) / 2
        assert found.evidence["inconsistency"][k] == pytest.approx(both)


@pytest.mark.parametrize("logprobs", [False, True])
def test_it_knows_where_the_model_goes_wrong(tmp_path, logprobs):
    """Topics it errs on are ranked higher than by the samples alone; a strange question is new."""
    from fusevlm import metrics

    known = read(tmp_path, world(600, 3, logprobs=logprobs))
    fresh = read(tmp_path, world(600, 4, logprobs=logprobs))
    wrong = np.array([row.wrong for row in fresh])
    scorer = Scorer.fit(known, towers="minilm")
    plain = Scorer.fit(known, towers="none")
    with_ = metrics.auroc(scorer.fuse.score(scorer.table(fresh)).u, wrong)
    without = metrics.auroc(plain.fuse.score(plain.table(fresh)).u, wrong)
    assert with_ > without + 0.02
    odd = Sampled(Query("odd", "wie spät ist es in Lissabon?"), fresh[0].samples)
    (judged,) = scorer.judge([odd], risk=0.2)
    assert judged.answer.reason == "unlike the calibration (question)"
    assert "surprisal" in scorer.fuse.model.evidence if logprobs else True


def test_saved_and_loaded_it_says_the_same(tmp_path):
    rows = read(tmp_path, world(300, 5))
    scorer = Scorer.fit(rows, towers="minilm")
    scorer.save(tmp_path / "fit")
    again = Scorer.load(tmp_path / "fit")
    assert again.features == scorer.features
    fresh = read(tmp_path, world(20, 6))
    one, two = (s.judge(fresh, risk=0.2) for s in (scorer, again))
    assert [a.answer.as_dict() for a in one] == [a.answer.as_dict() for a in two]
    assert all(a.answer.neighbours for a in one)
    with pytest.raises(ArtefactError, match=r"scorer\.json is missing"):
        Scorer.load(tmp_path)


def test_a_long_table_unlike_the_labelled_one_is_warned_of_once(tmp_path, caplog):
    scorer = Scorer.fit(read(tmp_path, world(300, 1)), towers="none")
    rows = world(600, 2)
    for row in rows:
        row["samples"] = ["yes", "no1", "no2"] * 3
    done = []
    judged = scorer.judge(read(tmp_path, rows), risk=0.3, progress=lambda *at: done.append(at))
    assert caplog.text.count("drift:") == 1
    assert [one.row.query.id for one in judged] == [row["id"] for row in rows]
    assert done[-1] == (600, 600)


def test_meanings_by_an_inference_model_and_by_sentences(tmp_path):
    tiny_helpers.save_inference("bert", tmp_path / "nli")
    rows = read(tmp_path, world(40, 7))
    for how in (str(tmp_path / "nli"), "sentences"):
        scorer = Scorer.fit(rows, towers="none", meanings=how)
        entropy = scorer.table(rows[:4]).evidence["meaning_entropy"]
        assert np.isfinite(entropy).all()
    judge = inference.NliModel.load(str(tmp_path / "nli"))
    texts = [[*row.samples.texts, "yes"] for row in rows[:4]]
    numbers = inference.find_meanings(
        judge, [row.query.question for row in rows[:4]], texts
    ).numbers
    scorer = Scorer.fit(rows, towers="none", meanings=str(tmp_path / "nli"))
    for own, apart in zip(numbers, scorer.table(rows[:4]).evidence["disagreement"], strict=True):
        assert apart == pytest.approx(np.mean(own[:-1] != own[-1]))


def test_pictures_are_looked_at_by_towers_and_one_that_is_gone_fails_alone(tmp_path, caplog):
    towers = tiny.save_towers(tmp_path / "towers")
    rows = world(60, 8)
    rng = np.random.default_rng(0)
    for k, row in enumerate(rows):
        row["image"] = f"{k}.png"
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(
            tmp_path / f"{k}.png"
        )
    (tmp_path / "5.png").write_bytes(b"gone")
    read_rows = read(tmp_path, rows)
    scorer = Scorer.fit(read_rows, towers=towers)
    assert set(scorer.fuse.model.input_widths) == {"image", "text"}
    found = scorer.judge(read_rows[:8], risk=0.3)
    assert [one.answer is None for one in found] == [k == 5 for k in range(8)]
    assert "not a picture" in found[5].row.error
    with pytest.raises(InputError, match="some pictures cannot be read"):
        scorer.table(read_rows[:8])
    del rows[3]["image"]
    read_rows = read(tmp_path, rows)
    found = scorer.judge(read_rows[:5], risk=0.3)
    assert [one.answer is None for one in found] == [k == 3 for k in range(5)]
    assert "it has no picture, and the fit looked at some" in found[3].row.error
    with caplog.at_level(logging.WARNING):
        scorer = Scorer.fit(read_rows, towers=towers)
    assert "1 of 60 rows have no picture: none is looked at" in caplog.text
    assert set(scorer.fuse.model.input_widths) == {"text"}


def test_what_cannot_be_fitted_is_said(tmp_path):
    with pytest.raises(InputError, match="none of 1 rows can be used: no row says"):
        Scorer.fit([Sampled(Query("a", "q"), Samples(["x"]))], towers="none")
    with pytest.raises(InputError, match="none of 1 rows can be used: row 1"):
        Scorer.fit([Sampled(Query("a", "q"), error="row 1: bad")], towers="none")


# ------------------------------------------------------------------------------ the command line


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("own samples")
    bad = {"id": "bad", "question": "q", "samples": []}
    save(root / "known.jsonl", [*world(500, 9), bad])
    save(root / "new.jsonl", [*world(200, 10), bad])
    words = ["fit", str(root / "known.jsonl"), "--out", str(root / "fit"), "--quiet"]
    assert main(words) == 0
    return root


def test_fit_says_what_it_can_promise(home, capsys):
    main(["fit", str(home / "known.jsonl"), "--out", str(home / "fit"), "--quiet"])
    told = capsys.readouterr()
    assert "500 labelled queries" in told.out
    assert "1 rows cannot be read; the first: row 501: it has no samples" in told.err
    assert "risk at most" in told.out
    assert f"fusevlm apply {home / 'fit'}" in told.out


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_apply_writes_a_row_per_query_in_any_form(home, capsys, ending):
    out = home / f"out.{ending}"
    words = ["apply", str(home / "fit"), str(home / "new.jsonl"), "--risk", "0.3", "--quiet"]
    assert main([*words, "--out", str(out)]) == 3  # one row failed
    told = capsys.readouterr()
    assert "200 queries" in told.out
    assert "1 failed; the first: row 201" in told.err
    table = read_table(out)
    assert len(table["id"]) == 201
    answered = [d == "answer" for d in table["decision"]]
    assert 30 < sum(answered) < 200
    if ending == "jsonl":
        rows = lines(out)
        right = [not row["wrong"] for row in rows if row.get("decision") == "answer"]
        share = 1 - np.mean(right)
        assert f"of those answered, {share:.1%} are wrong" in told.out
        assert share < 0.3
        assert all(row["reason"] for row in rows if row.get("decision") == "abstain")
        assert rows[-1] == {
            "id": "bad",
            "error": "row 201: it has no samples; expected a list of texts.",
        }


def test_apply_prints_what_the_scorer_says(home, capsys):
    words = [
        "apply",
        str(home / "fit"),
        str(home / "new.jsonl"),
        "--limit",
        "5",
        "--all",
        "--quiet",
    ]
    assert main(words) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = read_sampled(home / "new.jsonl", limit=5)
    judged = Scorer.load(home / "fit").judge(rows)
    for line, row, one in zip(printed, rows, judged, strict=True):
        expected = json.loads(json.dumps(one.answer.as_dict()))
        assert line == {"id": row.query.id, **expected, "wrong": row.wrong}


def test_csv_answers_are_not_run_by_spreadsheets(home, tmp_path):
    rows = world(4, 11)
    rows[0]["answer"] = "=1+1"
    save(tmp_path / "new.jsonl", rows)
    out = tmp_path / "out.csv"
    assert main(["apply", str(home / "fit"), str(tmp_path / "new.jsonl"), "--out", str(out)]) == 0
    with out.open(newline="") as stream:
        assert next(csv.DictReader(stream))["answer"] == "'=1+1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--evidence", "complment"], "no column 'complment'"),
        (["--unit", "image_id"], "no column 'image_id'"),
        (["--from", "ragas"], "--from 'ragas' is not known"),
        (["--criterion", "exact"], "criterion 'exact' is not known"),
        (["--towers", "/nowhere/at/all"], "cannot load"),
    ],
)
def test_wrong_words_are_answered(home, tmp_path, capsys, words, message):
    rows = world(30, 12)
    for row in rows:
        row["references"] = ["yes"]
        del row["wrong"]
    save(tmp_path / "known.jsonl", rows)
    given = ["fit", str(tmp_path / "known.jsonl"), "--out", str(tmp_path / "fit"), *words]
    code = main(given)
    told = capsys.readouterr().err
    assert code == 1
    assert message in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--risk", "2"], "risk is 2"),
        (["--delta", "0"], "delta is 0"),
        (["--out", "judged.txt"], "expected an ending .jsonl, .csv or .parquet"),
    ],
)
def test_apply_says_what_is_wrong_before_anything_is_judged(
    home, monkeypatch, capsys, words, message
):
    monkeypatch.setattr(Scorer, "judge", lambda *_, **__: pytest.fail("judged"))
    assert main(["apply", str(home / "fit"), str(home / "new.jsonl"), *words]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "form", "size"),
    [
        ("inspect.eval", "inspect", 12),
        ("inspect.json", "inspect", 5),
        ("lmms_eval_samples.jsonl", "lmms-eval", 12),
    ],
)
def test_logs_of_other_tools_from_the_file_to_the_decision(tmp_path, capsys, name, form, size):
    fit = str(tmp_path / "fit")
    log = ["--from", form]
    assert main(["fit", str(LOGS / name), "--out", fit, *log, "--towers", "none"]) == 0
    assert f"{size} labelled queries" in capsys.readouterr().out
    assert main(["apply", fit, str(LOGS / name), *log, "--risk", "0.5"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == size
    assert all(0 <= row["p_wrong"] <= 1 for row in printed)


def test_without_a_sentence_encoder_it_goes_without_and_says_so(tmp_path, monkeypatch, caplog):
    from fusevlm import scorer

    monkeypatch.setattr(scorer, "find_spec", lambda name: None)
    rows = read(tmp_path, world(60, 13))
    found = Scorer.fit(rows)
    assert found.features.towers == "none"
    assert "pip install 'fusevlm[sentences]'" in caplog.text
