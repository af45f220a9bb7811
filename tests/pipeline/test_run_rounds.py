"""Rounds in a run: the replay against decisions by hand, prices, fixed numbers, and no samples."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.models.conftest import make_picture

from fusevlm.cli import main
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model
from fusevlm.pipeline.calibrate import read_rounds
from fusevlm.pipeline.evaluate import read_results
from fusevlm.pipeline.methods import GUARANTEED, fit_method
from fusevlm.pipeline.rounds import curve, fit_rounds, replayed, tiers_of, tokens
from fusevlm.pipeline.score import read_scored
from fusevlm.render import costs
from fusevlm.render.text import results_text
from fusevlm.scores import compute_scores
from fusevlm.scores.votes import voted
from fusevlm.settings import (
    CalibrateConfig,
    Config,
    EvaluateConfig,
    RoundsConfig,
    SampleConfig,
    SemanticsConfig,
)
from fusevlm.types import Query


def test_a_run_tells_what_rounds_would_have_cost(finished):
    run, config, _ = finished
    results = read_results(run)
    found = results["rounds"]
    assert found["tiers"] == ["answer", "4 samples", "6 samples"]
    rounds, why = read_rounds(run)
    assert why == found["absent"] == ""
    queries, _ = read_scored(run, config, states={"embeddings"})
    test = queries.take(queries.test)
    for row in found["rows"]:
        decided = rounds.decide(test, risk=row["risk"], delta=0.1, samples=row["budget"])
        assert row["coverage"] == pytest.approx(decided.answer.mean())
        assert row["answers"] == pytest.approx(decided.answers.mean())
        used = np.array([0, 4, 6])[decided.tier]
        by_hand = [
            len(said.answer_logprobs) + sum(len(said.token_logprobs[i]) for i in range(n))
            for said, n in zip(test.samples, used, strict=True)
        ]
        assert row["tokens"] == pytest.approx(np.mean(by_hand))
    assert [row["budget"] for row in found["rows"]].count(None) == len(config.evaluate.risks)
    printed = results_text(results)
    assert "in rounds: certified coverage" in printed
    assert "100% answer" in printed


def test_what_is_asked_comes_before_samples_and_scores_last():
    config = Config(
        sample=SampleConfig(n=10),
        semantics=SemanticsConfig(complement="templates", complement_samples=2, rephrasings=3),
        calibrate=CalibrateConfig(evidence=("margin", "complement", "rephrasing", "distinct")),
        rounds=RoundsConfig(tiers=(2, 5)),
    )
    tiers = tiers_of(config, 10)
    assert [t.samples for t in tiers] == [0, 0, 2, 5, 10]
    assert [t.answers for t in tiers] == [1, 7, 9, 12, 17]
    assert tiers[0].extra == ("margin",)
    assert tiers[1].extra == tiers[3].extra == ("margin", "complement", "rephrasing")
    assert tiers[4].extra == ("margin", "complement", "rephrasing", "distinct")


def test_fixed_numbers_of_samples_are_those_of_the_methods_themselves(finished):
    run, config, _ = finished
    queries, _ = read_scored(run, config, states={"embeddings"})
    wanted = replace(config, evaluate=EvaluateConfig(risks=(0.3,), bootstrap=20))
    rows = curve(queries, [0, 2, 6, 99], ["practical", "g_nll", "umpire"], wanted)
    told = {(row["method"], row["samples"]): row for row in rows}
    assert {n for _, n in told if isinstance(n, int)} == {0, 2, 6}
    assert ("umpire", 0) not in told  # it needs samples
    assert told["g_nll", 0]["coverage"] == told["g_nll", 6]["coverage"]
    cut = queries.first(2)
    columns, _ = compute_scores(cut, ["umpire"])
    cut = replace(cut, columns={**queries.columns, **columns})
    known, new = cut.split()
    fitted = fit_method("umpire", known, wanted.calibrate)
    theta = fitted.thresholds(0.3, 0.1)[GUARANTEED]
    answered = fitted.apply(new).decide(GUARANTEED, theta)[0]
    assert told["umpire", 2]["coverage"] == pytest.approx(answered.mean())
    assert told["umpire", 2]["answers"] == 3
    used, _ = voted("adaptive_consistency", queries)
    (vote,) = [row for row in rows if row["method"] == "adaptive_consistency"]
    assert vote["answers"] == pytest.approx(used[queries.test].mean() + 1)


def test_tokens_are_not_known_without_log_probabilities(finished):
    run, config, _ = finished
    queries, _ = read_scored(run, config)
    bare = replace(
        queries, samples=[replace(said, token_logprobs=None) for said in queries.samples]
    )
    assert tokens(bare, np.zeros(len(bare), dtype=int)) is None
    rounds = fit_rounds(queries.split()[0], config)
    (row, *_) = replayed(rounds, bare.take(bare.test), config)["rows"]
    assert row["tokens"] is None
    assert "–" in results_text({**read_results(run), "rounds": {"tiers": ["answer"], "fixed": [],
                                "rows": [{**row, "shares": [1.0]}]}})  # fmt: skip


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A run of answers alone, from the file to the table."""
    home = tmp_path_factory.mktemp("bare")
    model = load_model("tiny:llava@3", Decoding(max_new_tokens=1))
    for split, size in {"calibration": 60, "test": 30}.items():
        rows = []
        for k in range(size):
            name = f"{split}{k}.png"
            make_picture(k + 100 * len(split)).save(home / name)
            (said,) = model.sample([Query("x", "what colour", [home / name])], 0, np.zeros(0), 0)
            rows.append({"id": str(k), "question": "what colour", "image": name,
                         "references": [said.samples.answer if k % 3 else "never"]})  # fmt: skip
        (home / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (home / "own.toml").write_text("""
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
[sample]
model = "tiny:llava@3"
n = 0
max_new_tokens = 1
[embed]
towers = "none"
[adapter]
source = "none"
[calibrate]
methods = ["practical", "paper", "g_nll", "umpire"]
[evaluate]
bootstrap = 20
[rounds]
counts = [0, 4]
""")
    assert main(["run", str(home / "own.toml"), "--run", str(home / "run"), "--quiet"]) == 0
    return home


def test_answers_alone_from_the_file_to_the_table(bare, capsys):
    results = read_results(bare / "run")
    assert set(results["slices"][0]["methods"]) == {"practical", "g_nll"}
    assert "it takes sample.n above 0" in results["absent"]["umpire"]
    assert "embeddings" in results["absent"]["paper"]
    assert results["rounds"]["tiers"] == ["answer"]
    assert {row["samples"] for row in results["rounds"]["fixed"]} == {0}
    page = (bare / "run" / "report" / "index.html").read_text()
    assert "0 a query" in page
    words = ["ask", str(bare / "test1.png"), "what colour", "--model", str(bare / "run")]
    for more in ([], ["--fast"], ["-n", "0"]):
        capsys.readouterr()
        assert main([*words, *more]) == 0, capsys.readouterr().err
        assert "no samples: the answer alone decided" in capsys.readouterr().out


def test_the_report_draws_what_rounds_cost(finished):
    """The figure's file and the page's data are the rows of the results, by their titles."""
    run, _, _ = finished
    rows = read_results(run)["rounds"]["rows"]
    with (run / "report" / "cost-coverage.csv").open() as stream:
        drawn = list(csv.DictReader(stream))
    assert [(float(one["answers"]), float(one["coverage"])) for one in drawn] == [
        (row["answers"], row["coverage"]) for row in rows
    ]
    assert {one["method"] for one in drawn} == {"FUSE in rounds"}
    assert (run / "report" / "cost-coverage.svg").is_file()
    page = (run / "report" / "index.html").read_text()
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert [one["coverage"] for one in json.loads(held)["costs"]] == [r["coverage"] for r in rows]


def test_what_has_no_title_is_not_drawn():
    rounds = {
        "rows": [{"method": "adaptive", "risk": 0.1, "answers": 2.0, "coverage": 0.5}],
        "fixed": [{"method": name, "risk": 0.1, "answers": 5.0, "coverage": 0.25}
                  for name in ("g_nll", "confidence_guided", "forgotten")],
    }  # fmt: skip
    found = costs.points(rounds, {"g_nll": "G-NLL"})
    assert [one["method"] for one in found] == ["FUSE in rounds", "G-NLL", "CGES"]
    assert costs.lines(found, 0.1)["CGES"] == [(5.0, 0.25)]
    assert costs.lines(found, 0.2) == {}
    assert costs.columns([]) == {}
