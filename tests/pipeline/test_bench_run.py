"""Whole benchmarks: on a run whose samples are stored already, and of two places from a file."""

import dataclasses
import json
import re

import numpy as np
import pytest
from tests.pipeline.conftest import TREE, make_run, renote
from tests.pipeline.tiny_models import BENCH, save_queries
from tests.render.test_latex import check_structure

from fusevlm.cli import main
from fusevlm.data.tables import read_queries
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.protocol import Decoding
from fusevlm.pipeline import bench as bench_run
from fusevlm.pipeline import calibrate, evaluate
from fusevlm.pipeline.bench import Bench, Curves, read_bench, run_bench, slug
from fusevlm.pipeline.evaluate import read_results
from fusevlm.pipeline.run import run_stages, states
from fusevlm.pipeline.score import LABELS
from fusevlm.render import tables
from fusevlm.render.results import Curve
from fusevlm.store import read_parquet, save_parquet
from fusevlm.store.runs import read_manifest, read_run
from fusevlm.testing import tiny

METHODS = ["g_nll", "ln_entropy", "eigv", "practical", "paper", "paper_mean"]
CURVES = Curves(
    samples=(2, 6),
    criteria=(("exact_match", None), ("rouge_l", 0.5), ("vqa_accuracy", None)),
    methods=("practical", "g_nll"),
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    config, _ = make_run(out / "here", {**TREE, "calibrate": {"methods": METHODS}})
    bench = Bench("trial", {"here": config}, CURVES)
    return bench, out, run_bench(bench, out)


def test_all_forms_are_written(done):
    _, out, results = done
    names = {path.name for path in out.iterdir() if path.is_file()}
    assert names == {
        "results.json", "results.md", "results.csv", "results.tex",
        *(f"here-{name}.{kind}" for name in ("samples", "criteria", "samples-criteria")
          for kind in ("svg", "png", "pdf")),
    }  # fmt: skip
    index = re.findall(r"^- \[(.+?)\]\(\1\)$", (out / "results.md").read_text(), re.MULTILINE)
    assert {name for name in names if name.endswith((".svg", ".pdf", ".png"))} <= set(index)
    assert "here/report/qualitative.svg" in index
    assert all((out / name).is_file() for name in index)
    check_structure((out / "results.tex").read_text())
    tree = json.loads((out / "results.json").read_text())
    assert [row["name"] for row in tree["rows"]] == METHODS
    assert "<svg" in (out / "here-criteria.svg").read_text()
    assert (results.places[0].n_calibration, results.places[0].n_test) == (120, 150)


def test_rows_carry_notes_and_reasons(done):
    _, _, results = done
    rows = {row.name: row for row in results.rows}
    why = rows["eigv"].cells["here"].missing
    assert "the run has no similarity; it takes semantics.similarity = 'sentences'" in why
    assert "ranks as FUSE (paper)" in rows["paper_mean"].note
    assert rows["practical"].group == "FUSE"
    assert f"absent: EigV ({why})" in tables.terminal(results)


def test_cells_are_the_figures_of_the_run(done):
    """A bench has no figures of its own: they are those of the run in its folder."""
    _, out, results = done
    found = read_results(out / "here")
    for row in results.rows:
        cell = row.cells["here"]
        if not cell.missing:
            assert cell.figures == found["slices"][0]["methods"][row.name]
            assert cell.difference == found["differences"].get(row.name)
            assert cell.seconds > 0
    assert results.places[0].best_baseline == found["best_baseline"]


def test_curves_are_there_and_criteria_that_do_not_apply_are_not(done):
    _, _, results = done
    over = {curve.over: curve for curve in results.curves}
    assert list(over["samples"].points) == ["2", "6"]
    # one reference per query: VQA accuracy needs ten
    assert list(over["criteria"].points) == ["exact_match", "rouge_l ≥ 0.5"]
    assert list(over["criteria"].left_out) == ["vqa_accuracy"]
    assert "Left out: vqa_accuracy" in tables.markdown(results)
    # all six samples and the run's own criterion: the cells of the table
    rows = {row.name: row.cells["here"].figures["auroc"]["estimate"] for row in results.rows[:4:3]}
    for name in CURVES.methods:
        assert over["samples"].values[name][-1] == pytest.approx(rows[name])
        assert over["criteria"].values[name][0] == pytest.approx(rows[name])


def made_again(*args, **options):
    pytest.fail("made again")


def test_a_second_run_compares_nothing_again(done, monkeypatch):
    bench, out, results = done
    for module, name in (
        (calibrate, "make"), (evaluate, "make"), (bench_run, "over_samples_of"),
        (bench_run, "over_criteria_of"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, made_again)
    again = run_bench(bench, out)
    assert again.places == results.places
    assert [row.cells for row in again.rows] == [row.cells for row in results.rows]
    assert again.curves == results.curves


def test_other_curves_are_drawn_again_and_the_table_is_not(done, monkeypatch):
    bench, out, _ = done
    made = []

    def noted(place, *args):
        made.append(place)
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "make", made_again)
    monkeypatch.setattr(bench_run, "over_samples_of", noted)
    other = dataclasses.replace(bench, curves=dataclasses.replace(CURVES, samples=(3,)))
    with pytest.raises(KeyboardInterrupt):
        run_bench(other, out)
    assert made == ["here"]


def test_curves_are_kept_as_long_as_all_they_rest_on_is_the_same(small, monkeypatch):
    """Other points, methods, settings or scores: drawn again. Nothing else: read."""
    root, config, _ = small
    run_stages(root, config, to="score")
    drawn = []

    def draw(place, queries, *args):
        drawn.append(place)
        return Curve(place, "samples", [str(len(drawn))], {"g_nll": [0.5]})

    monkeypatch.setattr(bench_run, "over_samples_of", draw)
    wanted = Curves(samples=(2, 4), methods=("g_nll",))
    seeded = dataclasses.replace(config, calibrate=dataclasses.replace(config.calibrate, seed=3))

    def curves(config=config, **changes):
        found = bench_run._curves(
            root, "here", config, dataclasses.replace(wanted, **changes), lambda what: None
        )
        return int(found[0].points[0])

    assert [curves(), curves()] == [1, 1]
    assert [curves(samples=(2,)), curves(samples=(2,))] == [2, 2]
    assert curves(methods=("distinct",)) == 3
    assert curves() == 4
    assert [curves(seeded), curves(seeded)] == [5, 5]
    labels = root / "score" / LABELS
    columns = read_parquet(labels)
    save_parquet(labels, {**columns, "wrong": [not wrong for wrong in columns["wrong"]]})
    renote(root, "score")
    assert curves(seeded) == 6


def test_other_rows_are_another_comparison(done):
    bench, out, _ = done
    config = bench.places["here"]
    fewer = dataclasses.replace(config.calibrate, methods=("paper",))
    other = dataclasses.replace(config, calibrate=fewer)
    with pytest.raises(ArtefactError, match=r"calibrate is stale: calibrate\.methods was"):
        run_bench(dataclasses.replace(bench, places={"here": other}), out)


@pytest.mark.parametrize("setting", ["method='g_nl'", "beside=['g_nl']"])
def test_a_method_to_draw_that_is_not_compared_is_refused(home, setting):
    with pytest.raises(
        InputError, match=r"report\.\w+: .*'g_nl' is not known. Did you mean 'g_nll'"
    ):
        read_bench(home / "bench.toml", [f"report.{setting}"])


def test_folder_names():
    assert slug("OK-VQA, big/model") == "OK-VQA__big_model"


def test_the_dry_run_on_the_command_line(capsys):
    assert main(["bench", "configs/paper.toml", "--dry-run", "--tflops", "200"]) == 0
    text = capsys.readouterr().out
    assert "llava-hf/llava-1.5-13b-hf  (26.7 GB" in text
    assert "at 200 TFLOP/s and 1000 GB/s" in text
    words = ["bench", "configs/paper.toml", "--dry-run", "--limit", "30"]
    assert main(words) == 0
    assert "VQAv2: 60 queries × 50 samples" in capsys.readouterr().out
    assert main(["bench", "nowhere.toml"]) == 1
    assert "cannot read" in capsys.readouterr().err


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two datasets of files, tiny towers and the config of a benchmark on them."""
    root = tmp_path_factory.mktemp("places")
    tiny.save_towers(root / "towers")
    save_queries(root, ["?"])
    model = tiny.load("llava", decoding=Decoding(max_new_tokens=3))
    asked = read_queries(root / "test.jsonl")
    said = [g.samples.answer for g in model.sample(asked, 4, np.ones(4), 0)]
    save_queries(root, [max((text for text in said if text), key=said.count)])
    (root / "bench.toml").write_text(BENCH)
    return root


@pytest.fixture(scope="module")
def bench_words(home):
    """The words of the benchmark, which has been run once; its results are kept in ``first``."""
    words = ["bench", str(home / "bench.toml"), "--out", str(home / "out"), "--limit", "20"]
    assert main([*words, "--quiet"]) == 0
    (home / "first.json").write_bytes((home / "out" / "results.json").read_bytes())
    return words


def cells(path, metric):
    """Estimates by method and place."""
    tree = json.loads(path.read_text())
    return {
        (row["name"], place): (cell["figures"].get(metric) or {}).get("estimate")
        for row in tree["rows"]
        for place, cell in row["cells"].items()
    }


def test_two_places_are_two_runs(home, bench_words, capsys):
    assert main(bench_words) == 0
    captured = capsys.readouterr()
    # all stages, twice, and the one adapter of both
    assert captured.err.count("done before") == 18 + 2
    assert "\r" not in captured.err
    said = [line for line in captured.err.splitlines() if line.startswith("==")]
    (shared,) = (home / "out").glob("adapter-*")
    assert said == [f"== {shared.name}", "== first", "== second, half"]
    for place, unit in {"first": "kind", "second__half": ""}.items():
        config = read_run(home / "out" / place)
        assert (config.sample.model, config.data.unit) == ("tiny:llava", unit)
        assert config.adapter.source == str(shared / "train" / "model")
        assert read_manifest(home / "out" / place, "sample").counts["queries"] == 32
    tree = json.loads((home / "out" / "results.json").read_text())
    assert [(p["n_calibration"], p["n_test"]) for p in tree["places"]] == [(20, 12), (20, 12)]
    assert "first: 20 calibration, 12 test queries, 0 failed" in captured.out
    assert "second, half: 20 calibration, 12 test queries" in captured.out


def test_the_adapter_of_a_bench_can_be_trained_before_it(home, bench_words, capsys):
    """The folder that the bench made is the one that this command finds done."""
    (shared,) = (home / "out").glob("adapter-*")
    words = ["adapter", "train", str(home / "bench.toml"), "--run", str(home / "out")]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.out == f"adapter: {shared / 'train' / 'model'}\n"
    assert captured.err.count("done before") == 2


def test_an_absent_baseline_is_explained_by_its_setting(home, bench_words):
    tree = json.loads((home / "out" / "results.json").read_text())
    missing = {row["name"]: row["cells"]["first"]["missing"] for row in tree["rows"]}
    assert "it takes semantics.similarity = 'sentences', 'nli' or 'string'" in missing["eigv"]
    assert "it takes semantics.p_true = true" in missing["p_true"]
    assert missing["distinct"] == ""
    text = (home / "out" / "results.md").read_text()
    assert text.count("semantics.p_true = true") == 2


@pytest.mark.parametrize(
    ("change", "metric", "moved"),
    [
        ("calibrate.probability=isotonic", "ece", "practical"),
        ("calibrate.threshold_share=0.8", "ece", "g_nll"),
        ("calibrate.seed=5", "ece", "g_nll"),
    ],
)
def test_settings_of_calibrate_reach_the_cells(home, bench_words, capsys, change, metric, moved):
    words = [*bench_words, "--set", change]
    assert main(words) == 1
    err = capsys.readouterr().err
    key = change.split("=")[0]
    assert "calibrate is stale: calibrate." in err
    assert key in err
    assert f"--set {change} --limit 20 --redo calibrate" in err
    assert main([*words, "--redo", "calibrate", "--quiet"]) == 0
    first, now = home / "first.json", home / "out" / "results.json"
    before, after = cells(first, metric), cells(now, metric)
    for place in ("first", "second, half"):
        assert after[moved, place] != before[moved, place]
        # a baseline ranks as it does, however it is calibrated
        assert cells(now, "auroc")["g_nll", place] == cells(first, "auroc")["g_nll", place]


def test_a_limit_is_part_of_what_a_bench_was_made_with(home, bench_words, capsys):
    words = [*bench_words[:-1], "8"]
    assert main(words) == 1
    err = capsys.readouterr().err
    assert "data is stale: data.n_calibration was 20 and is now 8" in err
    assert "--limit 8 --redo data" in err


def test_a_place_is_an_ordinary_run(home, bench_words, capsys):
    run = home / "out" / "first"
    assert main([*bench_words, "--redo", "calibrate", "--quiet"]) == 0
    again, first = (json.loads(p.read_text()) for p in (home / "out" / "results.json",
                                                        home / "first.json"))  # fmt: skip
    assert again["places"] == first["places"]
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("done before") == 9
    assert captured.out == f"page: {run / 'report' / 'index.html'}\n"
    assert ">Methods</h2>" in (run / "report" / "index.html").read_text()
    assert main(["ls", str(home / "out")]) == 0
    listed = capsys.readouterr().out.splitlines()[1:]
    done = ["done to train", "all done", "all done"]
    assert [word in line for word, line in zip(done, listed, strict=True)] == [True] * 3
    second = home / "out" / "second__half"
    found = states(second, read_run(second))
    assert {state.kind for state in found.values()} == {"fresh"}


def test_an_interrupted_bench_says_how_to_go_on(home, bench_words, capsys, monkeypatch):
    def stop(work):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "make", stop)
    assert main([*bench_words, "--redo", "calibrate", "--quiet"]) == 130
    assert f"Go on with: fusevlm {' '.join(bench_words)}\n" in capsys.readouterr().err
    monkeypatch.undo()
    assert main([*bench_words, "--quiet"]) == 0
