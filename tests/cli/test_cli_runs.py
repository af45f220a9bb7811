"""The verbs that work on run folders: run, score … report, ls, validate, demo."""

import json
import shlex
import shutil

import pytest
from tests.pipeline.conftest import TREE, make_run

from fusevlm.cli import main
from fusevlm.config import as_tree, demo_config
from fusevlm.pipeline.run import STAGES, TRAINING, run_stages
from fusevlm.store import runs as folders
from fusevlm.store.files import read_sealed, save_sealed


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli") / "runs" / "simulated"
    tree = {**TREE, "calibrate": {"methods": ["practical", "g_nll"]}}
    config, _ = make_run(root, {**tree, "evaluate": {**TREE["evaluate"], "bootstrap": 20}})
    run_stages(root, config)
    return root


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "runs" / "simulated")
    return tmp_path / "runs" / "simulated"


def test_a_fresh_stage_is_said_and_skipped(run, capsys):
    for verb in ("score", "calibrate", "evaluate", "report"):
        assert main([verb, str(run)]) == 0
        assert f"{verb}: done before" in capsys.readouterr().err
    assert main(["score", str(run), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_row_that_cannot_be_is_refused_before_anything_is_made_again(run, capsys):
    """Named by validate and by run, which then has removed nothing."""
    bad = 'calibrate.row=[{name = "mine", options = {jiter = 0.01}}]'
    words = ["run", str(run), "--set", bad]
    assert main([*words, "--redo", "calibrate"]) == 1
    assert "row 'mine': unknown option 'jiter'. Did you mean 'jitter'" in capsys.readouterr().err
    assert (run / "calibrate" / "practical").is_dir()
    good = bad.replace("jiter", "jitter")
    assert main(["calibrate", str(run), "--set", good, "--redo", "--quiet"]) == 0
    assert main(["report", str(run)]) == 0
    capsys.readouterr()
    absent = json.loads((run / "calibrate" / "absent.json").read_text())
    assert set(absent) <= {"rounds"}
    assert (run / "calibrate" / "mine" / "fuse.json").is_file()
    results = json.loads((run / "evaluate" / "results.json").read_text())
    assert list(results["slices"][0]["methods"]) == ["practical", "g_nll", "mine"]


def test_a_changed_setting_is_refused_then_redone(run, capsys):
    words = ["evaluate", str(run), "--set", "evaluate.risk=0.4"]
    assert main(words) == 1
    err = capsys.readouterr().err
    assert "evaluate is stale: evaluate.risk was 0.05 and is now 0.4" in err
    assert f"Run: fusevlm evaluate {run} --set evaluate.risk=0.4 --redo\n" in err
    assert main([*words, "--redo"]) == 0
    assert "answering at risk 0.4" in capsys.readouterr().out
    assert folders.read_run(run).evaluate.risk == 0.4
    assert not (run / "report").exists()
    assert main(["report", str(run)]) == 0
    assert str(run / "report" / "index.html") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "command"),
    [
        ("sample.n=3", "sample {run} --set sample.n=3 --redo"),
        # no verb makes these stages by themselves
        ("data.seed=3", "run {run} --set data.seed=3 --redo data"),
        ("adapter.statistic=s_text", "run {run} --set adapter.statistic=s_text --redo adapter"),
        ("semantics.seed=3", "run {run} --set semantics.seed=3 --redo semantics"),
    ],
)
def test_a_stale_stage_before_is_redone_by_its_own_command(run, capsys, change, command):
    """The advice keeps the setting that made the stage stale, and is a command that exists."""
    assert main(["report", str(run), "--set", change]) == 1
    stage, err = change.split(".")[0], capsys.readouterr().err
    assert f"{stage} is stale: {change.split('=')[0]} was " in err
    assert f"Run: fusevlm {command.format(run=run)}\n" in err


def test_the_advised_command_cures(run, capsys):
    """A stage without a verb of its own: the words of the advice, given as they are."""
    assert main(["evaluate", str(run), "--set", "semantics.meanings=none"]) == 1
    advice = capsys.readouterr().err.split("Run: fusevlm ")[1].splitlines()[0]
    assert main([*shlex.split(advice), "--quiet"]) == 0
    assert main(["evaluate", str(run), "--set", "semantics.meanings=none", "--quiet"]) == 0
    absent = json.loads((run / "score" / "absent.json").read_text())
    assert "semantics.meanings = 'string'" in absent["semantic_entropy_discrete"]


def test_redoing_a_stage_alone_never_removes_what_it_rests_on(run, capsys):
    words = ["run", str(run), "--only", "report"]
    assert main([*words, "--set", "score.layer=middle"]) == 1
    err = capsys.readouterr().err
    assert f"Run: fusevlm run {run} --set score.layer=middle --redo score\n" in err
    assert main([*words, "--set", "report.examples=2"]) == 1
    err = capsys.readouterr().err
    assert f"fusevlm run {run} --set report.examples=2 --only report --redo report\n" in err
    assert main([*words, "--redo", "score"]) == 1
    assert "report alone rests on score" in capsys.readouterr().err
    assert (run / "score" / "scores.parquet").is_file()  # refused before anything is removed


def as_toml(run, path):
    tree = as_tree(folders.read_run(run))
    lines = [f"name = {json.dumps(tree.pop('name'))}"]
    for section, keys in tree.items():
        lines += [f"[{section}]", *[f"{k} = {json.dumps(v)}" for k, v in keys.items()]]
    path.write_text("\n".join(lines))
    return path


def test_stage_verbs_take_the_config_of_a_run_too(run, tmp_path, capsys, monkeypatch):
    path = as_toml(run, tmp_path / "config.toml")
    folders.set_aside(run, "evaluate")
    folders.set_aside(run, "report")
    monkeypatch.chdir(tmp_path)  # the run folder is runs/NAME
    assert main(["report", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "page: runs/simulated/report/index.html\n"
    said = [line for line in captured.err.splitlines() if "begins" in line]
    assert said == ["evaluate: begins", "report: begins"]  # it makes what it rests on
    assert "\r" not in captured.err
    assert main(["score", str(path), "--run", str(run), "--quiet"]) == 0
    assert capsys.readouterr().out == f"score: {run / 'score'}\n"
    assert main(["run", str(run), "--quiet"]) == 0
    assert "150 test queries; base accuracy" in capsys.readouterr().out
    assert main(["score", str(run), "--run", "elsewhere"]) == 1
    assert "--run goes with a TOML file" in capsys.readouterr().err
    for verb in ("run", "sample"):
        assert main([verb, "nowhere.toml"]) == 1
        assert "cannot read nowhere.toml" in capsys.readouterr().err
        assert main([verb, "nowhere"]) == 1
        assert "nowhere is no run folder" in capsys.readouterr().err


def test_a_limit_makes_another_run(run, tmp_path, capsys):
    path = as_toml(run, tmp_path / "config.toml")
    for words in (["run", str(path), "--run", str(run)], ["run", str(run)], ["embed", str(run)]):
        assert main([*words, "--limit", "4"]) == 1
        err = capsys.readouterr().err
        assert "data is stale: data.n_calibration was 0 and is now 4" in err
        assert f"{' '.join(['run', *words[1:]])} --limit 4 --redo data\n" in err
    assert main(["sample", str(run), "--limit", "0"]) == 1
    assert "--limit is 0; expected a whole number of at least 1" in capsys.readouterr().err


def test_run_accepts_only_and_redo(run, tmp_path, capsys):
    path = as_toml(run, tmp_path / "config.toml")
    words = ["run", str(path), "--run", str(run)]
    assert main([*words, "--only", "report", "--redo", "report"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("report: set aside as report.old-1\nreport: begins")
    assert captured.out == ""
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.err.count("done before") == len(STAGES) - len(TRAINING)
    assert "150 test queries; base accuracy" in captured.out
    assert main([*words, "--set", "calibrate.seed=1"]) == 1
    err = capsys.readouterr().err
    assert "calibrate is stale" in err
    assert f"--run {run} --set calibrate.seed=1 --redo calibrate" in err
    assert main([*words, "--only", "nothing"]) == 1
    assert (
        "stage 'nothing' is not known. Known are: data, pairs, train, " in capsys.readouterr().err
    )


def test_ls_says_where_runs_stand(run, capsys):
    shutil.copytree(run, run.parent / "other")
    folders.set_aside(run.parent / "other", "report")
    changed = read_sealed(run.parent / "other" / "run.json", "")
    changed["config"]["calibrate"]["seed"] = 5
    save_sealed(run.parent / "other" / "run.json", changed)
    shutil.copytree(run, run.parent / "spoilt")
    (run.parent / "spoilt" / "run.json").write_text("{")
    (run.parent / "not-a-run").mkdir()
    assert main(["ls", str(run.parent)]) == 0
    header, other, whole, spoilt = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "config", "queries", "stages", "size"]
    assert "done to evaluate, calibrate stale" in other
    assert "all done" in whole
    assert "damaged" in spoilt
    assert main(["ls", str(run)]) == 0
    assert "all done" in capsys.readouterr().out
    assert main(["ls", str(run.parent / "not-a-run")]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert main(["ls", str(run.parent / "nowhere")]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_validate_lists_every_problem(tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(
        "[data]\nsource = 'files'\ncalibration = 'none.csv'\ntest = 'none.csv'\n"
        "[sample]\nmodel = 'some/model'\n[embed]\ntowers = 'some/towers'\n"
        "[adapter]\nsource = './an/adapter'\n[score]\nbaselines = ['g_nl']\n"
        "[calibrate]\nmethods = ['umpyre']\n"
    )
    words = ["validate", str(path), "--run", str(tmp_path / "run")]
    assert main(words) == 1
    out = capsys.readouterr().out
    for part in (
        "none.csv, which is no file",
        "Did you mean 'umpire'",
        "score.baselines: 'g_nl' is not known. Did you mean 'g_nll'",
        "adapter.source is './an/adapter', which is no folder",
        "some/model from the hub (not known here",
        "all stages would run",
    ):
        assert part in out, part
    assert out.count("none.csv") == 1
    assert not (tmp_path / "run").exists()
    # a value that can never be right is refused when the file is read
    for key, value in {"score.criterion": "taste", "adapter.statistic": "t"}.items():
        assert main([*words, "--set", f"{key}={value}"]) == 1
        captured = capsys.readouterr()
        assert (captured.out, f"{key} is '{value}'; expected one of" in captured.err) == ("", True)
    assert main([*words, "--set", "sample.model=tinny:llava"]) == 1
    assert (
        "the registered model 'tinny' is not known. Did you mean 'tiny'" in capsys.readouterr().out
    )


def test_validate_says_which_scores_the_settings_leave_out(tmp_path, capsys):
    path = tmp_path / "small.toml"
    path.write_text("[semantics]\nmeanings = 'none'\n[sample]\nlayers = ['last']\n")
    main(["validate", str(path), "--run", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert "semantic_entropy_probe (need meanings: semantics.meanings = 'string', 'nli'" in out
    assert "absent: p_true (need p_true: semantics.p_true = true)" in out
    assert "absent: eigenscore, eigenscore_code (need middle: 'middle' among sample.layers)" in out
    words = ["--set", 'score.baselines=["p_true", "g_nll"]', "--set", "semantics.p_true=true"]
    main(["validate", str(path), "--run", str(tmp_path / "run"), *words])
    assert "absent" not in capsys.readouterr().out


def test_validate_says_what_would_run(run, tmp_path, capsys, monkeypatch):
    for name in ("vlm", "dual_encoder", "adapter"):
        (tmp_path / "models" / name).mkdir(parents=True)
    facts = {"text_config": {"hidden_size": 100}}
    (tmp_path / "models" / "vlm" / "config.json").write_text(json.dumps(facts))
    monkeypatch.setenv("FUSEVLM_EMBEDDED", str(tmp_path / "models"))
    path = tmp_path / "small.toml"
    path.write_text("[data]\nn_calibration = 100\nn_test = 100\n[sample]\nn = 9\n")
    assert main(["validate", str(path), "--run", str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    # 200 queries × (9 + 1) answers × 2 layers × 100 floats, and 8 kB a query: 1.6 + 1.6 MB
    assert "200 queries × 9 samples, about 3 MB" in out
    assert out.endswith("ready\n")
    assert main(["validate", str(path), "--run", str(tmp_path / "new"), "--limit", "30"]) == 0
    assert "60 queries × 9 samples, about 1 MB" in capsys.readouterr().out
    assert main(["validate", str(path), "--run", str(run), "--quiet"]) == 1  # run would refuse it
    assert "data is stale: data.n_calibration was 0 and is now 100" in capsys.readouterr().out
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9))
    assert main(["validate", str(path), "--run", str(tmp_path / "new")]) == 1
    assert "0 MB are free" in capsys.readouterr().out


def test_the_demo_refuses_too_few_queries(capsys):
    assert main(["demo", "--limit", "10"]) == 1
    assert "limit is 10; expected a whole number of at least 40" in capsys.readouterr().err


def test_the_demo_needs_its_extras(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "easy_vqa", None)
    assert main(["demo"]) == 1
    assert "pip install 'fusevlm[embedded]'" in capsys.readouterr().err


def test_the_demo_is_the_run_of_its_config(tmp_path, capsys, monkeypatch):
    """``fusevlm demo`` prints the results of a run of demo_config in the folder it names."""
    found = {}

    def pretend(run, config, **options):
        found.update(run=run, config=config)
        raise KeyboardInterrupt

    monkeypatch.setattr("fusevlm.pipeline.run.run_stages", pretend)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--limit", "80", "--seed", "3"]) == 130
    assert found["config"] == demo_config(80, 3)
    assert str(found["run"]) == "runs/demo-80-seed3"
    err = capsys.readouterr().err
    assert "Go on with: fusevlm demo --limit 80 --seed 3 --out runs/demo-80-seed3" in err


def test_a_question_may_be_a_verb(capsys, tmp_path):
    assert main(["ask", str(tmp_path / "none.png"), "demo"]) == 1
    assert "none.png does not exist" in capsys.readouterr().err
