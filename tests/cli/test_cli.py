"""The command line, in process: output, JSON, exit codes, and what it imports."""

import csv
import dataclasses
import json
import subprocess
import sys
from contextlib import redirect_stderr
from io import StringIO

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from fusevlm import labels_needed, metrics, thresholds
from fusevlm.cli import COMMANDS, main, tables, without_redo
from fusevlm.errors import InputError


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    wrong = (rng.random(200) < 0.3).astype(int)
    u = wrong + rng.standard_normal(200)
    path = tmp_path / "scores.csv"
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["u", "wrong", "p", "image"])
        writer.writerows(zip(u, wrong, 1 / (1 + np.exp(1 - u)), np.arange(200) // 2, strict=True))
    return path, u, wrong


def test_metrics(table, capsys):
    path, u, wrong = table
    assert main(["metrics", str(path), "--boot", "50", "--json", "--probability", "p"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auroc"]["estimate"] == pytest.approx(metrics.auroc(u, wrong))
    assert found["ece"]["low"] <= found["ece"]["high"]
    assert main(["metrics", str(path), "--boot", "50", "--unit", "image"]) == 0
    out = capsys.readouterr().out
    assert f"200 queries, {wrong.sum()} wrong" in out
    assert f"{metrics.auroc(u, wrong):.4f}" in out


def test_threshold(table, capsys):
    path, u, wrong = table
    assert main(["threshold", str(path), "--risk", "0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = thresholds.learn_then_test(u, wrong, risk=0.2, delta=0.1)
    assert found["rules"][0]["threshold"] == pytest.approx(expected.threshold)
    assert len(found["table"]) == 10
    assert main(["threshold", str(path), "--risk", "0.001"]) == 0
    assert "abstain" in capsys.readouterr().out
    assert main(["threshold", str(path), "--risk", "0.001", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rules"][0]["threshold"] is None


def test_labels(table, capsys):
    path, u, wrong = table
    words = ["labels", "--risk", "0.2", "--coverage", "0.7", "--error-rate", "0.25"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = labels_needed(risk=0.2, coverage=0.7, error_rate=0.25)
    assert found == dataclasses.asdict(plan) | {"possible": True}
    assert main(words) == 0
    assert capsys.readouterr().out == f"{plan}\n"
    assert main(["labels", "--risk", "0.2", "--file", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["error_rate"] == pytest.approx(wrong.mean())
    assert found["auroc"] == pytest.approx(metrics.auroc(u, wrong))
    assert main(["labels", "--risk", "0.2"]) == 1
    assert "--error-rate 0.2, or --file" in capsys.readouterr().err


def test_moments(capsys):
    assert main(["moments", "5120", "50"]) == 0
    assert "slope²/v = 127361" in capsys.readouterr().out


def test_demo_writes_what_it_prints(tmp_path, capsys):
    words = ["demo", "--simulation", "--limit", "240"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SIMULATION")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["simulation"] is True
    for row in results["table"]:
        assert f"{row['AUROC']:.4f}" in out
    first = (tmp_path / "results.json").read_bytes()
    assert main([*words, "--out", str(tmp_path), "--quiet"]) == 0
    quiet = capsys.readouterr().out
    assert "SIMULATION" not in quiet
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["table"] == json.loads(first)["table"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_other_table_formats(table, tmp_path, capsys, suffix):
    _, u, wrong = table
    path = tmp_path / f"scores.{suffix}"
    if suffix == "jsonl":
        rows = [{"u": float(a), "wrong": int(b)} for a, b in zip(u, wrong, strict=True)]
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        parquet.write_table(pyarrow.table({"u": u, "wrong": wrong}), path)
    assert main(["metrics", str(path), "--boot", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auroc"]["estimate"] == pytest.approx(metrics.auroc(u, wrong))


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (None, [], "cannot read"),
        ("u,wrong\n", [], "holds no rows"),
        ("v,wrong\n1,0\n", [], "no column 'u'. Known are: v, wrong."),
        ("u,wrong\n1,0\nx,1\n", [], "u is not numeric"),
        ("u,wrong\n1,0\n2,7\n", [], "only 0"),
        ("u,wrong\n1,0\n2,1\n", ["--boot", "0"], "n_boot"),
    ],
)
def test_failures_exit_with_1_and_say_why(tmp_path, capsys, content, words, message):
    path = tmp_path / "scores.csv"
    if content is not None:
        path.write_text(content)
    assert main(["metrics", str(path), *words]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_boolean_words_are_labels_and_other_endings_are_refused(tmp_path, capsys):
    path = tmp_path / "scores.csv"
    path.write_text("u,wrong\n1,False\n2,True\n3,true\n0,false\n")
    assert main(["metrics", str(path), "--boot", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["auroc"]["estimate"] == 1.0
    other = path.rename(tmp_path / "scores.json")
    assert main(["metrics", str(other)]) == 1
    assert "expected .csv, .jsonl or .parquet" in capsys.readouterr().err


def test_broken_json_lines_are_named_by_line(tmp_path, capsys):
    path = tmp_path / "scores.jsonl"
    path.write_text('{"u": 1, "wrong": 0}\n\n{"u": \n')
    assert main(["metrics", str(path)]) == 1
    assert "line 3: not JSON" in capsys.readouterr().err
    path.write_text("[1]\n")
    assert main(["metrics", str(path)]) == 1
    assert "line 1: expected an object" in capsys.readouterr().err


def test_an_unwritable_folder_is_said(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    words = ["demo", "--simulation", "--limit", "160", "--quiet"]
    assert main([*words, "--out", str(blocked / "below")]) == 1
    assert "choose another folder" in capsys.readouterr().err


def test_interruption_has_its_own_exit_code(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    verb = dataclasses.replace(tables.VERBS["moments"], run=interrupt)
    monkeypatch.setitem(tables.VERBS, "moments", verb)
    assert main(["moments", "4", "2"]) == 130
    assert "Go on with: fusevlm moments 4 2\n" in capsys.readouterr().err


def test_no_command_prints_the_help(capsys):
    assert main([]) == 2
    assert "exit codes" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["metrics"], ["threshold", "x", "--risk", "high"]])
def test_wrong_usage_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("smaple", "Did you mean 'sample'?"),
        ("calibate", "Did you mean 'calibrate'?"),
        ("bogus", "Known are: demo, ask, run, sample, embed, "),
    ],
)
def test_a_misspelt_command_is_refused_with_the_nearest(word, cure, capsys):
    assert main([word, "own.toml", "--limit", "3"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"fusevlm: no command is called {word!r}. {cure}")


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("run a.toml --redo score --limit 3", "run a.toml --limit 3"),
        ("run a.toml --redo=score", "run a.toml"),
        ("demo --redo score", "demo"),
        ("sample --redo runs/a", "sample runs/a"),
        ("score runs/a --redo --set score.layer=middle", "score runs/a --set score.layer=middle"),
        ("adapter train p.npy --fresh --out a", "adapter train p.npy --out a"),
    ],
)
def test_going_on_does_not_begin_anew(words, again):
    assert without_redo(words.split()) == again.split()


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"fusevlm {verb}" in capsys.readouterr().out.split("example")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--risk", "7"], "risk is 7"),
        (["-n", "-1"], "n is -1"),
        (["--seed", "-1"], "seed is -1"),
        (["--fast", "--samples", "4"], "exclude each other"),
    ],
)
def test_ask_checks_its_terms_before_any_model_is_loaded(tmp_path, monkeypatch, words, message):
    monkeypatch.setattr("fusevlm.assistant.load", lambda source: pytest.fail("loaded"))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with redirect_stderr(StringIO()) as told:
        assert main(["ask", str(tmp_path / "a.png"), "what?", *words]) == 1
        assert main(["ask", str(tmp_path / "a.png")]) == 1
    assert message in told.getvalue()
    assert "a.png is a file; what is asked about it?" in told.getvalue()


def test_talk_goes_on_with_the_last_picture_that_could_be_read(tmp_path, monkeypatch, capsys):
    class Echo:
        def ask(self, picture, question, **terms):
            raise InputError(f"{question} {picture.size}")

    Image.new("RGB", (8, 5)).save(tmp_path / "a.png")
    monkeypatch.setattr("fusevlm.assistant.load", lambda source: Echo())
    turns = [str(tmp_path / "a.png"), "one?", "none.png", "two?", "", "three?", "", ""]
    monkeypatch.setattr("sys.stdin", StringIO("\n".join(turns)))
    assert main(["ask", "--talk"]) == 0
    first, second, third = capsys.readouterr().err.splitlines()
    assert (first, third) == ("one? (8, 5)", "three? (8, 5)")
    assert second.startswith("none.png does not exist")


def test_imports_stay_light():
    """One process: `import fusevlm` is bare, the core works without torch, help loads no scipy."""
    code = """
import sys
import fusevlm
heavy = {"scipy", "pyarrow", "torch", "pandas", "transformers", "sklearn", "matplotlib"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert "Fuse" in dir(fusevlm) and fusevlm.__version__
from fusevlm.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
assert not heavy & set(sys.modules), heavy & set(sys.modules)
main(["moments", "64", "8"])
fusevlm.Fuse, fusevlm.fuse.thresholds.learn_then_test, fusevlm.metrics.auroc
assert not {"torch", "pyarrow", "pandas", "transformers"} & set(sys.modules)
try:
    fusevlm.nonsense
except AttributeError as error:
    assert "nonsense" in str(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
