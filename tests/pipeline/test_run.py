"""Running stages: skipped, resumed, refused; and everything that can go wrong with a folder."""

import errno
import subprocess
import sys
from dataclasses import replace

import pytest

from fusevlm.config import change_config
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline import calibrate, score
from fusevlm.pipeline.evaluate import read_results
from fusevlm.pipeline.run import STAGES, describe, idle, run_stages, states
from fusevlm.store import files, hold, runs


def heard(run, config, **options):
    lines = []
    run_stages(run, config, say=lines.append, **options)
    return lines


def test_a_finished_run_is_said_and_left_alone(run):
    folder, config = run
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.name == "stage.json"}
    lines = heard(folder, config)
    assert [line.split(":")[0] for line in lines] == [
        stage for stage in STAGES if not idle(stage, config)
    ]
    assert all("done before" in line for line in lines)
    assert before == {p: p.stat().st_mtime_ns for p in before}


def test_a_changed_key_makes_its_stage_stale_by_name(run):
    folder, config = run
    changed = change_config(config, ["score.layer=middle"])
    with pytest.raises(ArtefactError) as refused:
        run_stages(folder, changed)
    assert "score is stale: score.layer was 'last' and is now 'middle'" in str(refused.value)
    assert "--redo score" in str(refused.value)
    assert runs.read_run(folder) == config  # a refusal changes nothing
    lines = heard(folder, changed, redo="score")
    assert [line for line in lines if "begins" in line] == [
        f"{name}: begins" for name in ("score", "calibrate", "evaluate", "report")
    ]
    assert runs.read_run(folder) == changed


def test_a_later_key_leaves_earlier_stages_alone(run):
    folder, config = run
    changed = change_config(config, ["evaluate.risk=0.3"])
    found = states(folder, changed)
    assert {name: state.kind for name, state in found.items() if state.kind != "fresh"} == {
        "evaluate": "stale"
    }
    assert "evaluate.risk was 0.05 and is now 0.3" in found["evaluate"].reason


def test_an_earlier_stage_made_again_differently_makes_the_next_stale(run):
    folder, config = run
    labels = folder / "score" / score.LABELS
    labels.write_bytes(labels.read_bytes() + b"x")
    manifest = runs.read_manifest(folder, "score")
    runs.write_manifest(folder, replace(manifest, digest=runs.digest_stage(folder / "score")))
    with pytest.raises(ArtefactError, match="calibrate is stale: score was made again"):
        run_stages(folder, config)


def test_the_same_result_again_leaves_later_stages_fresh(run):
    folder, config = run
    runs.set_aside(folder, "score")
    assert states(folder, config)["calibrate"].reason == "score is missing"
    with pytest.raises(ArtefactError, match="calibrate is stale: score is missing"):
        run_stages(folder, config, only="calibrate")
    lines = heard(folder, config)
    assert [line for line in lines if "begins" in line] == ["score: begins"]
    assert {state.kind for state in states(folder, config).values()} == {"fresh"}


def test_an_interrupted_stage_goes_on(run, monkeypatch):
    folder, config = run
    real = calibrate.make

    def stop(work):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "make", stop)
    with pytest.raises(KeyboardInterrupt):
        run_stages(folder, config, redo="calibrate")
    found = {name: state.kind for name, state in states(folder, config).items()}
    assert (found["score"], found["calibrate"], found["evaluate"]) == (
        "fresh",
        "incomplete",
        "missing",
    )
    monkeypatch.setattr(calibrate, "make", real)
    lines = heard(folder, config)
    assert "calibrate: goes on" in lines
    assert {state.kind for state in states(folder, config).values()} == {"fresh"}


def test_a_full_disk_stops_the_run_and_keeps_what_is_done(run, monkeypatch):
    folder, config = run
    real = files.write_atomically

    def full(path, payload):
        if path.name == score.TABLE:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, payload)

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(ArtefactError, match=r"No space left on device\. What is finished is kept"):
        run_stages(folder, config, redo="score")
    monkeypatch.setattr(files, "write_atomically", real)
    assert states(folder, config)["score"].kind == "incomplete"
    assert states(folder, config)["adapter"].kind == "fresh"
    run_stages(folder, config)
    assert states(folder, config)["report"].kind == "fresh"


def test_a_full_disk_while_noting_an_interruption_hides_nothing(run, monkeypatch):
    folder, config = run
    real = files.write_atomically
    allowed = iter([True, True])  # run.json and the first manifest

    def full(path, payload):
        if not next(allowed, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, payload)

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(ArtefactError, match=r"score/part-00000"):
        run_stages(folder, config, redo="score")


def test_a_folder_that_cannot_be_written_is_said(finished, tmp_path):
    _, config, _ = finished
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ArtefactError, match="Choose another folder"):
        run_stages(blocked / "below", config)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("run.json", "{", "run.json cannot be read"),
        ("run.json", "[]", "holds no JSON object"),
        ("run.json", '{"kind": "else"}', "holds 'else', not 'fusevlm.run'"),
        (
            "run.json",
            '{"kind": "fusevlm.run", "schema_version": 99, "fusevlm": "9.0"}',
            "made by fusevlm 9.0 with schema version 99",
        ),
        ("score/stage.json", "{", "Make it again: --redo score"),
        ("score/stage.json", '{"schema_version": 2, "odd": 2}', "is damaged"),
        ("score/stage.json", '{"schema_version": 0, "fusevlm": "0.0"}', "schema version 0"),
    ],
)
def test_damaged_and_foreign_manifests_are_refused(run, file, text, message):
    folder, config = run
    (folder / file).write_text(text)
    with pytest.raises(ArtefactError, match=message):
        run_stages(folder, config)


def test_a_damaged_stage_can_be_redone(run):
    folder, config = run
    (folder / "score" / "stage.json").write_text("{")
    run_stages(folder, config, redo="score")
    assert states(folder, config)["report"].kind == "fresh"


def test_a_damaged_table_is_named_before_anything_is_made_of_it(run):
    folder, config = run
    table = folder / "score" / score.TABLE
    whole = table.read_bytes()
    for spoil, what in ((lambda: table.write_bytes(whole[:-9] + b"x" + whole[-8:]), "was changed"),
                        (table.unlink, "is missing")):  # fmt: skip
        spoil()
        with pytest.raises(
            ArtefactError, match=rf"scores\.parquet {what} since the stage was made"
        ):
            run_stages(folder, config, redo="calibrate")


def test_one_process_at_a_time(run):
    folder, config = run
    with hold(folder), pytest.raises(ArtefactError, match="in use by process"):
        run_stages(folder, config)


def test_a_changed_input_file_makes_its_stage_stale(run, tmp_path, monkeypatch):
    folder, config = run
    watched = tmp_path / "weights"
    watched.mkdir()
    (watched / "a").write_text("1")
    monkeypatch.setattr(calibrate, "inputs", lambda config: {"the weights": watched}, raising=False)
    run_stages(folder, config, redo="calibrate")
    assert states(folder, config)["calibrate"].kind == "fresh"
    (watched / "a").write_text("2")
    assert states(folder, config)["calibrate"].reason == "the files of the weights changed"
    assert states(folder, config, look_outside=False)["calibrate"].kind == "fresh"


def test_a_stage_alone_needs_those_before_it(run):
    folder, config = run
    runs.set_aside(folder, "report")
    runs.set_aside(folder, "evaluate")
    with pytest.raises(ArtefactError, match="report needs evaluate, which is missing"):
        run_stages(folder, config, only="report")
    with pytest.raises(InputError, match=r"stage 'scores' is not known\. Did you mean 'score'"):
        run_stages(folder, config, only="scores")
    with pytest.raises(InputError, match=r"stage 'scores' is not known\. Did you mean 'score'"):
        run_stages(folder, config, redo="scores")


def test_two_runs_give_the_same_bytes(run, finished):
    folder, config = run
    run_stages(folder, config, redo="score")
    for name in ("evaluate/results.json", "evaluate/results.csv", "report/index.html"):
        assert (folder / name).read_bytes() == (finished[0] / name).read_bytes()
    assert str(folder) not in (folder / "evaluate" / "results.json").read_text()
    assert read_results(folder)["slices"][0]["queries"] == 150


def test_from_score_on_no_model_library_is_imported(run):
    folder, _ = run
    code = f"""
import sys
from pathlib import Path
from fusevlm.store.runs import read_run
from fusevlm.pipeline.run import run_stages
run = Path({str(folder)!r})
run_stages(run, read_run(run), redo="score")
loaded = {{"torch", "transformers"}} & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_counts_in_words():
    assert describe({"queries": 3, "failed": 0}) == "3 queries, 0 failed"
