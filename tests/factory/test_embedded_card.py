"""What is measured of the embedded models, and the card that shows it."""

import json

import numpy as np
import pytest
import transformers

from factory import card, measure, models, train
from fusevlm.data import questions, scenes
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vlm")
    models.save_half(models.language_model(0), models.answer_processor(), folder)
    return folder


@pytest.fixture(scope="module")
def asked():
    """Some clean queries of every condition, and some corrupted ones."""
    some = scenes.split("calibration")
    held = next(s for s in some if s.held_out)
    known = next(s for s in some if not s.held_out)
    clean = measure.clean_queries("calibration", [held, known])
    return [*clean, *measure.every_view("calibration", [known])]


def test_clean_queries_cover_every_kind_and_condition(asked):
    clean = [q for q in asked if q.metadata["severity"] == 0][:-1]
    conditions = {measure.condition(q) for q in clean}
    assert conditions == {measure.KNOWN, "held-out pair", "unseen phrasing", "both"}
    assert {"yes_no", "position", "corners"} <= {q.metadata["kind"] for q in clean}


def test_accuracy_is_that_of_the_greedy_answer(asked, vlm):
    """Right and wrong by one forward pass are those of decoding through the back-end."""
    backend = HuggingFace.load(str(vlm))
    greedy = [g.samples.answer for g in backend.sample(asked[:6], 1, np.ones(1), 0)]
    told = [
        questions.Query(q.id, text, images=q.images, references=[answer], metadata=q.metadata)
        for q, answer, text in zip(asked, greedy, [q.question for q in asked], strict=False)
    ]
    ends = [len(models.encode(answer)) < backend.decoding.max_new_tokens for answer in greedy]
    found = measure.is_right(models.load(vlm), told)
    assert [bool(f) for f in found] == ends


def test_groups_have_means_and_counts():
    found = measure.counted(np.array([1.0, 0.0, 1.0]), ["b", "a", "b"])
    assert found == {"a": {"mean": 0.0, "n": 1}, "b": {"mean": 1.0, "n": 2}}


def figures(asked, folder):
    backend = HuggingFace.load(str(folder))
    asker = HuggingFace.load(str(folder), decoding=Decoding(prompt=models.ASK))
    model = models.load(folder)
    accuracies = measure.accuracies(model, asked)
    statistic = {
        "by_severity": {"0": -2.0, "5": -1.0},
        "spearman_of_means": 1.0,
        "spearman": 0.5,
        "noise": {"0": -2.0, "5": -1.5},
    }
    return {
        "vlm_dev_every_view": accuracies,
        "vlm_calibration": accuracies,
        "vlm_calibration_clean": measure.accuracies(model, asked[:8]),
        "distinct": measure.distinct(backend, asked[::3], n=3),
        "zero_shot_24": {"0": 0.95, "5": 0.125},
        "adapter_by_severity": {"s": statistic},
        "question_generator": measure.returned(asker, model, asked[:3]),
        "bytes": {"vlm": 2_500_000},
        "stages": {"vlm": {"seconds": 60.4}},
        "seconds_measuring": 9.0,
    }


def test_the_card_shows_the_figures_of_runs_side_by_side(asked, vlm, tmp_path, capsys):
    found = figures(asked, vlm)
    for name, share in (("one", 0.95), ("two", 0.5)):
        (tmp_path / name).mkdir()
        own = {**found, "zero_shot_24": {"0": share, "5": 0.125}}
        (tmp_path / name / train.METRICS).write_text(json.dumps(own))
    assert card.main([str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    text = capsys.readouterr().out
    assert f"| | {tmp_path / 'one'} | {tmp_path / 'two'} |" in text
    assert "| severity 0 | 0.950 | 0.500 |" in text
    assert "| noise, severity 0–5 | -2.00 -1.50 | -2.00 -1.50 |" in text
    n = found["vlm_calibration"]["n"]
    assert n == len(asked)
    assert f"({n})" in text
    assert text.count("| all, MB | 2.50 | 2.50 |") == 1
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {4}


def test_the_card_says_when_a_run_is_not_finished(tmp_path, capsys):
    assert card.main([str(tmp_path)]) == 1
    assert "no metrics" in capsys.readouterr().err
