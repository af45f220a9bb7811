"""Damage is named, and made good by making again just what was damaged."""

import json
import shutil

import pytest

from fusevlm.cli import main
from fusevlm.errors import ArtefactError
from fusevlm.pipeline.run import STAGES, idle, run_stages, states
from fusevlm.pipeline.verify import repair, verify
from fusevlm.store import runs
from fusevlm.store.generations import read_generations


def results(folder):
    return (folder / "evaluate" / "results.json").read_bytes()


def kinds(folder, config):
    return {state.kind for state in states(folder, config).values()}


def test_a_whole_run_has_no_damage(run):
    folder, config = run
    (folder / "score" / "notes.txt").write_text("mine")  # what others add is theirs
    assert verify(folder) == []
    assert repair(folder) == []
    assert kinds(folder, config) == {"fresh"}


def files_of(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in runs.NOTES)


def spoilt(path):
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(bytes(whole))


@pytest.mark.parametrize("spoil", [spoilt, lambda path: path.unlink()], ids=["changed", "lost"])
def test_every_file_of_every_stage_is_watched(run, spoil):
    folder, _ = run
    for path in files_of(folder):
        if path.name == "run.json" or path.parent == folder:
            continue
        kept = path.read_bytes()
        spoil(path)
        found = verify(folder)
        stage = path.relative_to(folder).parts[0]
        assert stage in {one.stage for one in found}, path
        assert any(path.name in str(one) for one in found), (path, found)
        path.write_bytes(kept)
    assert verify(folder) == []


@pytest.mark.parametrize("stage", ["score", "calibrate", "evaluate", "report"])
def test_a_damaged_stage_is_made_again_and_the_rest_stays(run, stage):
    folder, config = run
    before = results(folder)
    path = next(p for p in files_of(folder / stage) if p.suffix in (".json", ".html"))
    spoilt(path)
    lines = []
    repair(folder, lines.append)
    assert lines == [f"{stage}: set aside as {stage}.old-1"]
    lines.clear()
    run_stages(folder, config, say=lines.append)
    assert [line for line in lines if "begins" in line] == [f"{stage}: begins"]
    assert kinds(folder, config) == {"fresh"}
    assert results(folder) == before


def test_a_run_of_before_has_one_digest_of_a_stage(run):
    folder, _ = run
    path = folder / "score" / runs.STAGE
    new = ("files", "seal")
    old = {k: v for k, v in json.loads(path.read_text()).items() if k not in new}
    path.write_text(json.dumps(old))
    assert verify(folder) == []
    spoilt(folder / "score" / "scores.parquet")
    assert [str(one) for one in verify(folder)] == [
        "score: something in it was changed, lost or added"
    ]


def test_a_lost_manifest_is_damage(run):
    folder, _ = run
    (folder / "score" / runs.STAGE).unlink()
    assert [str(one) for one in verify(folder)] == ["score: stage.json is missing"]
    (folder / "calibrate" / runs.STAGE).write_text("{")
    assert {one.stage for one in verify(folder)} == {"score", "calibrate"}


def test_damaged_parts_alone_are_made_again(tmp_path, capsys):
    """A real run: parts of samples and vectors, spoilt and lost, come back as they were."""
    config = (
        "[data]\nn_calibration = 40\nn_test = 20\nunit = 'image_id'\n[sample]\nn = 3\nbatch = 8\n"
    )
    config += (
        "[embed]\nbatch = 16\n[calibrate]\nmethods = ['practical']\n[evaluate]\nbootstrap = 5\n"
    )
    config += "[report]\nfigures = ['roc']\npdf = false\n"
    (tmp_path / "own.toml").write_text(config)
    folder = tmp_path / "run"
    words = ["run", str(tmp_path / "own.toml"), "--run", str(folder)]
    assert main(words) == 0
    before = results(folder)
    said = [g.samples.texts for g in read_generations(folder / "sample")]
    spoilt(folder / "sample" / "part-00003.safetensors")
    (folder / "sample" / "part-00005.json").unlink()
    (folder / "embed" / "part-00001.parquet").unlink()
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "sample: part-00003.safetensors was changed" in out
    assert "sample: part-00005.json is missing" in out
    assert "embed: part-00001.parquet is missing" in out
    assert main([*words, "--redo", "score"]) == 1  # nothing is left out in silence
    assert "fusevlm verify" in capsys.readouterr().err
    assert main(["verify", str(folder), "--repair"]) == 0
    assert main(words) == 0
    heard = capsys.readouterr().err
    assert "sample: goes on" in heard
    assert "sample 44/60" in heard  # two parts of eight are missing
    assert "set aside" not in heard.split("sample: goes on")[1]
    assert [g.samples.texts for g in read_generations(folder / "sample")] == said
    assert results(folder) == before
    assert verify(folder) == []


def test_clean_shows_and_removes_what_is_left_over(run, capsys, monkeypatch):
    folder, config = run
    run_stages(folder, config, redo="evaluate")
    (folder / "score" / ".scores.parquet.0a1b2c3d.tmp").write_bytes(b"half")
    (folder / "score" / "mine.tmp").write_text("mine")
    (folder / "notes.old-1").mkdir()  # not a stage's name, but of its form
    (folder / "Mine.old-1").mkdir()
    capsys.readouterr()
    assert main(["clean", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "evaluate.old-1" in shown
    assert ".scores.parquet.0a1b2c3d.tmp" in shown
    assert "--yes" in shown
    assert (folder / "evaluate.old-1").is_dir()  # only shown
    assert main(["clean", str(folder.parent), "--yes"]) == 0
    names = {p.name for p in folder.iterdir()}
    assert not {"evaluate.old-1", "report.old-1"} & names
    assert {"Mine.old-1", "notes.old-1"} <= names
    assert (folder / "score" / "mine.tmp").exists()
    assert not list((folder / "score").glob(".*.tmp"))
    assert kinds(folder, config) == {"fresh"}
    with pytest.raises(ArtefactError):
        verify(folder.parent)


def test_a_run_that_is_no_run_is_left_alone(tmp_path, capsys):
    home = tmp_path / "mine"
    (home / "report").mkdir(parents=True)
    (home / "report" / "thesis.tex").write_text("years of work")
    assert main(["demo", "--limit", "40", "--out", str(home), "--redo", "data"]) == 1
    assert "is no run folder, and has a 'report' that is somebody else's" in capsys.readouterr().err
    assert (home / "report" / "thesis.tex").read_text() == "years of work"
    for words in (["clean", str(home), "--yes"], ["verify", str(home)]):
        assert main(words) == 1
    assert sorted(p.name for p in home.iterdir() if p.name != ".lock") == ["report"]


@pytest.mark.parametrize(
    "changes",
    [["score.layer=nowhere"], ["calibrate.methods=['practicl']"], ["sample.model=nobody/nothing"],
     ["evaluate.slices=['colur']"], ["report.figures=['rock']"], ["score.baselines=['g_nl']"],
     ["sample.device=cuda"]],
    ids=str,
)  # fmt: skip
def test_a_mistake_beside_redo_costs_nothing(run, changes, capsys, monkeypatch):
    """Everything is checked before the old stages are set aside."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder, _ = run
    before = {p: p.read_bytes() for p in files_of(folder)}
    words = [w for change in changes for w in ("--set", change)]
    stage = "sample" if changes[0].startswith("sample") else "score"
    assert main(["run", str(folder), "--redo", stage, *words]) == 1
    assert capsys.readouterr().err
    assert {p: p.read_bytes() for p in files_of(folder)} == before


def test_neutral_settings_and_other_paths_are_no_reason(run, tmp_path):
    folder, config = run
    from fusevlm.config import change_config

    other = change_config(config, ["sample.batch=3", "embed.batch=7", "embed.device=cuda",
                                   "adapter.device=cuda", "semantics.device=cuda:1"])  # fmt: skip
    assert kinds(folder, other) == {"fresh"}
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    assert kinds(moved, runs.read_run(moved)) == {"fresh"}


def test_a_moved_project_is_the_same_run(tmp_path, capsys):
    """Tables, pictures, models and run moved together: fresh, and pictures are found."""
    from tests.models.conftest import make_picture

    home = tmp_path / "one"
    (home / "pictures").mkdir(parents=True)
    for split, size in {"calibration": 24, "test": 12}.items():
        rows = []
        for k in range(size):
            make_picture(k + 50 * len(split)).save(home / "pictures" / f"{split}{k}.png")
            rows.append({"id": str(k), "question": "what colour", "image": f"{split}{k}.png",
                         "references": ["red"]})  # fmt: skip
        (home / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (home / "own.toml").write_text(
        "[data]\nsource = 'files'\ncalibration = 'calibration.jsonl'\ntest = 'test.jsonl'\n"
        "images = 'pictures'\n[sample]\nmodel = 'tiny:llava@1'\nn = 3\nmax_new_tokens = 3\n"
    )
    words = ["sample", str(home / "own.toml"), "--run", str(home / "run")]
    assert main(words) == 0
    shutil.move(home, tmp_path / "two")
    home = tmp_path / "two"
    words = ["embed", str(home / "own.toml"), "--run", str(home / "run")]
    capsys.readouterr()
    assert main(words) == 0
    heard = capsys.readouterr().err
    assert "data: done before" in heard
    assert "embed: begins" in heard
    assert "36 queries, 0 failed" in heard
    assert not idle("data", runs.read_run(home / "run"))
    assert set(STAGES) > {"data"}
