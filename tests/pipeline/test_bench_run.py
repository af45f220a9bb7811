"""A whole benchmark on a run whose samples are stored already."""

import dataclasses
import json

import pytest
from fusevlm.pipeline.bench_config import Bench, BenchConfig
from tests.pipeline.conftest import TREE, make_run

from fusevlm.cli import main
from fusevlm.pipeline import bench as bench_run
from fusevlm.pipeline.bench import labels_by, run_bench, slug
from fusevlm.render import tables

COMPARE = BenchConfig(
    scores=("g_nll", "ln_entropy", "eigv"),
    rows=("practical", "paper", "paper_mean"),
    generations=(2, 6),
    criteria=(("exact_match", None), ("rouge_l", 0.5), ("vqa_accuracy", None)),
    curves=("practical", "g_nll"),
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    config, _ = make_run(out / "here", TREE)
    bench = Bench("trial", {"here": config}, COMPARE)
    return bench, out, run_bench(bench, out)


def test_all_forms_are_written(done):
    _, out, results = done
    names = {path.name for path in out.iterdir() if path.is_file()}
    assert names == {
        "results.json", "results.md", "results.csv", "results.tex", "here-generations.svg",
        "here-criteria.svg",
    }  # fmt: skip
    tree = json.loads((out / "results.json").read_text())
    assert [row["name"] for row in tree["rows"]][:2] == ["g_nll", "ln_entropy"]
    assert "<svg" in (out / "here-criteria.svg").read_text()
    assert results.places[0].n_test == 150


def test_rows_carry_notes_and_reasons(done):
    _, _, results = done
    rows = {row.name: row for row in results.rows}
    assert rows["eigv"].cells["here"].missing == "the run has no similarity"
    assert "ranks as FUSE (paper)" in rows["paper_mean"].note
    assert rows["practical"].group == "FUSE"


def test_curves_are_there_and_criteria_that_do_not_apply_are_not(done):
    _, _, results = done
    over = {curve.over: curve for curve in results.curves}
    assert list(over["generations"].points) == ["2", "6"]
    # one reference per query: VQA accuracy needs ten
    assert list(over["criteria"].points) == ["exact_match", "rouge_l ≥ 0.5"]
    assert list(over["criteria"].left_out) == ["vqa_accuracy"]
    assert "Left out: vqa_accuracy" in tables.markdown(results)


def test_a_second_run_compares_nothing_again(done, monkeypatch):
    bench, out, results = done
    monkeypatch.setattr(bench_run, "compare_place", lambda *args: pytest.fail("made again"))
    again = run_bench(bench, out)
    assert again.places == results.places
    assert [row.cells for row in again.rows] == [row.cells for row in results.rows]


def test_another_question_is_another_comparison(done, monkeypatch):
    bench, out, _ = done
    made = []

    def noted(*args):
        made.append(args[1])
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "compare_place", noted)
    other = Bench("trial", bench.places, dataclasses.replace(COMPARE, rows=("paper",)))
    with pytest.raises(KeyboardInterrupt):
        run_bench(other, out)
    assert made == ["here"]


def test_labels_by_criterion():
    criteria = [("exact_match", None), ("rouge_l", 0.6)]
    criteria.append(("vqa_accuracy", None))
    labels, left_out = labels_by([["red circle"]] * 2, ["red circle", "red"], criteria)
    found = dict(labels)
    assert "10" in left_out["vqa_accuracy"]
    assert found["exact_match"].tolist() == [False, True]
    assert found["rouge_l ≥ 0.6"].tolist() == [False, False]  # F1 of 1 word of 2 is 2/3


def test_folder_names():
    assert slug("OK-VQA, big/model") == "OK-VQA__big_model"


def test_the_dry_run_on_the_command_line(capsys):
    assert main(["bench", "configs/paper.toml", "--dry-run", "--tflops", "200"]) == 0
    text = capsys.readouterr().out
    assert "llava-hf/llava-1.5-13b-hf  (26.7 GB" in text
    assert "at 200 TFLOP/s" in text
    assert main(["bench", "nowhere.toml"]) == 1
    assert "cannot read" in capsys.readouterr().err
