"""From files and a tiny model to the page and to ``ask``; interruptions and failures on the way."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.models.conftest import make_picture
from tests.pipeline.tiny_models import CONFIG, save_models, save_queries
from tests.semantics.test_complement import yes_or_no

import fusevlm
from fusevlm.assistant import Assistant, load
from fusevlm.cli import main
from fusevlm.config import read_config
from fusevlm.data.images import load_image
from fusevlm.errors import ArtefactError, InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.temperatures import stratified
from fusevlm.models.towers import Towers
from fusevlm.pipeline import sample
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.evaluate import read_predictions
from fusevlm.pipeline.run import states
from fusevlm.pipeline.score import read_scored
from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.render.answer import Answer
from fusevlm.semantics.selfcheck import verdicts
from fusevlm.store.generations import read_embeddings, read_generations
from fusevlm.store.runs import read_run
from fusevlm.testing import tiny


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with models, queries, a config and a run that was interrupted while sampling."""
    root = tmp_path_factory.mktemp("own")
    save_models(root)
    model = HuggingFace.load(str(root / "vlm"))
    save_queries(root, ["?"])
    (root / "own.toml").write_text(CONFIG)
    config = read_config(root / "own.toml")
    queries = read_queries_of_files(config)
    said = [g.samples.answer for g in model.sample(queries, 2, np.ones(2), 0) if g.samples]
    save_queries(root, [max(set(said), key=said.count), "never"])
    return root


def read_queries_of_files(config):
    from fusevlm.data.tables import read_queries

    return read_queries(config.data.test)[:8]


@pytest.fixture(scope="module")
def done(home):
    """The run brought to its end through the command line, after one interruption."""
    run = home / "run"
    words = ["run", str(home / "own.toml"), "--run", str(run)]
    real, calls = HuggingFace.sample, []

    def stop_in_third_batch(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HuggingFace, "sample", stop_in_third_batch)
        assert main(words) == 130
    kept = sum(1 for _ in read_generations(run / "sample"))
    assert main(words) == 0
    return run, kept, words


def test_an_interruption_keeps_what_is_done_and_says_how_to_go_on(home, capsys, monkeypatch):
    run = home / "stopped"
    words = ["run", str(home / "own.toml"), "--run", str(run), "--set", "sample.n=3"]

    def stop(work):
        raise KeyboardInterrupt

    monkeypatch.setattr(sample, "make", stop)
    assert main([*words, "--redo", "data"]) == 130
    err = capsys.readouterr().err
    command = " ".join(words)
    assert f"what is done is kept. Go on with: fusevlm {command}\n" in err
    kinds = {
        name: state.kind for name, state in states(run, read_config(words[1], words[5:])).items()
    }
    assert (kinds["data"], kinds["sample"]) == ("fresh", "incomplete")


def test_a_resumed_run_has_the_answers_of_an_uninterrupted_one(home, done):
    run, kept, _ = done
    assert kept == 16
    config = read_config(home / "own.toml")
    queries = read_asked(run)
    assert len(queries) == 56
    found = list(read_generations(run / "sample"))
    assert [g.query_id for g in found] == [q.id for q in queries]
    model = sample.load_sampler(config)
    heat = np.array(found[0].temperatures)
    for start in (0, 16, 48):
        fresh = model.sample(queries[start : start + 8], 4, heat, 0)
        for a, b in zip(fresh, found[start : start + 8], strict=True):
            assert a.samples.texts == b.samples.texts


def test_the_adapter_is_trained_on_training_pairs_only(done):
    run, _, _ = done
    assert len(read_embeddings(run / "embed")[0]) == 56  # judged ones only
    counts = {
        stage: json.loads((run / stage / "stage.json").read_text())["counts"]
        for stage in ("pairs", "train", "adapter")
    }
    assert counts["pairs"] == {"pairs": 24, "failed": 0}
    assert counts["train"] == {"pairs": 23, "held out": 1, "steps": 3}
    assert counts["adapter"] == {"queries": 56}
    record = GpAdapter.load(run / "train" / "model").fitted.record
    assert record.n_pairs + record.n_held_out == 24


def test_the_run_prints_what_it_wrote(done, capsys):
    run, _, words = done
    assert main([*words, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    results = json.loads((run / "evaluate" / "results.json").read_text())
    assert "16 test queries" in captured.out
    for row in results["slices"][0]["methods"].values():
        assert f"{row['auroc']['estimate']:.3f} [" in captured.out
    assert re.search(r"seconds: data \d+\.\d, pairs .* sample .* together \d+", captured.out)
    assert str(run / "report" / "index.html") in captured.out
    page = (run / "report" / "index.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert sum(url.startswith("data:image/webp;base64,") for url in data["picture"]) == 16
    assert data["u"]["practical"] == pytest.approx(read_predictions(run)["practical.u"], rel=1e-4)


def test_failed_queries_are_counted_and_left_out(home, tmp_path, capsys):
    rows = [json.loads(x) for x in (home / "calibration.jsonl").read_text().splitlines()]
    for row in rows:
        row["image"] = str(home / row["image"])
    rows[3]["image"] = "missing.png"
    (home / "holes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["run", str(home / "own.toml"), "--run", str(tmp_path / "run"), "--quiet"]
    words += ["--set", f"data.calibration={home / 'holes.jsonl'}", "--set", "sample.n=2"]
    words += ["--set", 'calibrate.methods=["prior-only"]', "--set", "evaluate.slices=[]"]
    assert main(words) == 3
    assert "failed and left out: 1 (" in capsys.readouterr().out
    failed = json.loads((tmp_path / "run" / "score" / "failed.json").read_text())
    assert list(failed) == ["calibration/3"]
    assert "does not exist" in failed["calibration/3"]


def test_validate_looks_into_the_tables(home, tmp_path, capsys):
    words = ["validate", str(home / "own.toml"), "--run", str(tmp_path / "run")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "56 queries × 4 samples" in out
    assert f"folder {home / 'vlm'}" in out
    rows = [json.loads(x) for x in (home / "test.jsonl").read_text().splitlines()]
    rows[2]["image"], rows[3]["references"] = "gone.png", []
    (home / "bad.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words += ["--set", f"data.test={home / 'bad.jsonl'}", "--set", "embed.towers=./nowhere"]
    assert main([*words, "--set", "data.unit=kin", "--set", 'evaluate.slices=["kid"]']) == 1
    out = capsys.readouterr().out
    assert "data.test: 1 pictures cannot be read, first" in out
    assert "data.test: 1 queries have no references, first 3" in out
    assert "evaluate.slices names the column 'kid', which the queries do not have. Did you" in out
    assert "the column 'kin', which query '0' lacks. Did you mean 'kind'" in out
    assert "'./nowhere', which is no folder" in out
    assert "5 problem(s)" in out
    words = [*words[:4], "--set", "data.test="]  # nothing to slice yet, and nothing to evaluate
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "40 queries × 4 samples" in out
    assert "there are no test queries: name data.test, which evaluate needs" in out
    assert "1 problem(s)" in out


FEW = ("--limit", "12", "--set", 'calibrate.methods=["practical", "distinct"]')


def test_a_registered_model_from_the_file_to_the_table(home, tmp_path, capsys):
    """Stage by stage, then the rest by ``run``; what is done is not done again."""
    run = tmp_path / "run"
    words = [str(home / "own.toml"), "--run", str(run), "--set", "sample.model=tiny:llava", *FEW]
    assert main(["validate", *words]) == 0
    out = capsys.readouterr().out
    assert "sample.model: tiny:llava, a registered model" in out
    assert "24 queries × 4 samples" in out
    assert main(["sample", *words]) == 0
    assert main(["embed", str(run)]) == 0
    capsys.readouterr()
    assert main(["run", *words]) == 0
    captured = capsys.readouterr()
    before = [x.split(":")[0] for x in captured.err.splitlines() if "done before" in x]
    assert before == ["data", "sample", "embed"]
    queries, found = read_asked(run), list(read_generations(run / "sample"))
    assert len(queries) == 24
    decoding = sample.load_sampler(read_config(home / "own.toml")).decoding
    model = tiny.load("llava", decoding=decoding)
    fresh = model.sample(queries[8:16], 4, np.array(found[0].temperatures), 0)
    assert [g.samples.texts for g in fresh] == [g.samples.texts for g in found[8:16]]
    results = json.loads((run / "evaluate" / "results.json").read_text())
    assert (results["calibration"], results["slices"][0]["queries"]) == (12, 12)
    rows = {line.split()[0]: line for line in captured.out.splitlines() if line[:1].isalpha()}
    for name, row in results["slices"][0]["methods"].items():
        assert f"{row['auroc']['estimate']:.3f} [" in captured.out
        assert name in rows
    assert main(["ask", str(home / "test-1.png"), "what colour", "--model", str(run)]) == 0
    assert "4 samples: " in capsys.readouterr().out


def test_a_registered_model_refuses_what_it_does_not_take(home, tmp_path, capsys):
    words = ["sample", str(home / "own.toml"), "--run", str(tmp_path / "run"), *FEW, "--quiet"]
    assert main([*words, "--set", "sample.model=tiny:lava"]) == 1
    assert "the tiny model 'lava' is not known. Did you mean 'llava'" in capsys.readouterr().err
    words += ["--set", "sample.model=tiny:llava", "--set", "sample.dtype=float16", "--redo"]
    assert main(words) == 1
    assert "models of 'tiny' take no dtype; got 'float16'" in capsys.readouterr().err


def test_test_queries_alone_are_sampled_and_scored_but_not_calibrated(home, tmp_path, capsys):
    """No calibration table, and no references either: there is nothing to learn from."""
    rows = [json.loads(x) for x in (home / "test.jsonl").read_text().splitlines()][:6]
    bare = [{**row, "references": []} for row in rows]
    (tmp_path / "bare.jsonl").write_text("\n".join(map(json.dumps, bare)))
    run = tmp_path / "run"
    words = [str(home / "own.toml"), "--run", str(run), "--set", "data.calibration="]
    words += ["--set", f"data.test={tmp_path / 'bare.jsonl'}", "--set", f"data.images={home}"]
    words += ["--quiet"]
    assert main(["score", *words]) == 0
    asked, absent = read_scored(run, read_run(run))
    assert (len(asked), asked.fit, asked.wrong) == (6, None, None)
    assert {"g_nll", "distinct"} <= set(asked.columns)
    assert absent["umpire"] == "the run has no fit; it takes calibration queries"
    assert main(["calibrate", str(run), "--quiet"]) == 1
    assert "there are no calibration queries: name data.calibration" in capsys.readouterr().err


def test_ask_is_what_the_parts_say(home, done):
    """The assistant's numbers against the models loaded and called one by one."""
    run, _, _ = done
    picture = home / "test-3.png"
    found = fusevlm.load(run).ask(picture, "what colour", risk=0.3, seed=4)
    model = HuggingFace.load(str(home / "vlm"), decoding=load(run).model.decoding)
    query = fusevlm.types.Query("ask", "what colour", [load_image(picture)])
    (said,) = model.sample([query], 4, stratified(4, seed=4), 4)
    towers = Towers.load(str(home / "dual_encoder"))
    pair = towers.images([load_image(picture)]), towers.texts(["what colour"]).vectors
    s = GpAdapter.load(run / "train" / "model").statistics(*pair)
    fuse = Fuse.load(run / "calibrate" / "practical")
    assert set(fuse.model.statistics.names) == set(s)
    prompt = said.prompt_layers["middle"][None]
    inputs = {"image": pair[0], "text": pair[1], "prompt": prompt}
    scores = fuse.score([said.samples], s=s, inputs=inputs)
    assert found.answer == said.samples.answer
    assert sum(found.samples.values()) == 4
    assert found.samples == {t: said.samples.texts.count(t) for t in said.samples.texts}
    assert found.u == pytest.approx(scores.u[0], rel=1e-5)
    assert found.p_wrong == pytest.approx(fuse.predict_proba(scores)[0], rel=1e-5)
    answered = fuse.decide(scores, risk=0.3).answer[0]
    assert found.decision == ("answer" if answered else "abstain")
    again = fusevlm.load(run).ask(picture, "what colour", risk=0.3, seed=4)
    assert found.as_dict() == again.as_dict()
    theta = fuse.threshold(risk=0.3)
    assert found.threshold == (theta.threshold if theta.feasible else None)
    assert sum(found.added.values()) == pytest.approx(found.m_post, rel=1e-6)


def test_ask_asks_the_negated_question_where_the_fit_had_it(home, done):
    """Yes/no questions only, as the stage asks it; a fit without it asks nothing more."""
    run, _, _ = done
    plain = load(run)
    decoding = Decoding(max_new_tokens=1)
    vlm = HuggingFace(*yes_or_no(*tiny.build("llava")), decoding=decoding)
    table, _ = read_scored(run, read_run(run), states={"embeddings"})
    column = np.random.default_rng(0).uniform(size=len(table))
    fuse = Fuse("practical").fit(
        table.samples, table.wrong, s=table.s, extra={"complement": column}
    )
    asking = replace(plain, fuse=fuse, model=vlm)
    query = fusevlm.types.Query("ask", "is there a circle?", [load_image(home / "test-3.png")])
    found = asking.ask(query.images[0], query.question, seed=4)
    assert found.answer in ("yes", "no")
    (said,) = vlm.sample([query], 4, stratified(4, seed=4), 4)
    denied = replace(query, question="is there not a circle?")
    verdict = verdicts(vlm, [denied])
    again = verdict.share[0] if found.answer == "yes" else 1 - verdict.share[0]
    known = asking.table(asking._asked([query], {}), [said.samples], [said.prompt_layers])
    expected = fuse.score([said.samples], s=known.prior, extra={"complement": [again]})
    assert found.u == pytest.approx(expected.u[0], rel=1e-6)
    other = replace(query, id="other", question="what colour")
    column = asking.further([query, other], [said.samples] * 2)["complement"]
    np.testing.assert_allclose(column, [again, np.nan], rtol=1e-6)
    assert plain.further([query], [said.samples]) == {}


def test_ask_gives_a_fit_with_margins_its_own(home, done):
    """As the pipeline's column has it: minus the least margin of the judged answer."""
    run, _, _ = done
    table, _ = read_scored(run, read_run(run), states={"embeddings"})
    column = np.random.default_rng(0).uniform(size=len(table))
    fuse = Fuse().fit(table.samples, table.wrong, s=table.s, extra={"margin": column})
    asking = replace(load(run), fuse=fuse)
    query = fusevlm.types.Query("ask", "what colour", [load_image(home / "test-3.png")])
    (said,) = asking.model.sample([query], 4, stratified(4, seed=4), 4)
    least = min(said.samples.answer_margins)
    assert asking.further([query], [said.samples])["margin"] == pytest.approx([-least])
    assert np.isfinite(asking.ask(query.images[0], query.question).u)


def test_ask_with_an_older_fit_gives_it_what_it_had(home, done):
    """One unnamed statistic and no inputs; none at all; and what no question has."""
    run, _, _ = done
    assistant = load(run)
    queries, _ = read_scored(run, read_run(run), states={"embeddings"})
    known, _ = queries.split()
    picture = home / "test-3.png"
    for s in (known.prior["s"], None):
        fit = Fuse().fit(known.samples, known.wrong, s=s)
        found = replace(assistant, fuse=fit).ask(picture, "what colour")
        assert np.isfinite(found.u)
    for given, what in (({"s": {"mood": known.s}}, "prior statistic 'mood'"),
                        ({"inputs": {"sound": np.eye(40)}}, "input 'sound'")):  # fmt: skip
        fit = Fuse().fit(known.samples, known.wrong, **given)
        with pytest.raises(InputError, match=f"the fit has the {what}"):
            replace(assistant, fuse=fit).ask(picture, "what colour")


@pytest.fixture
def embedded(home, done, monkeypatch):
    """The tiny models in the place of the embedded ones."""
    run, _, _ = done
    for name, target in {"adapter": "train/model", "fuse": "calibrate/practical"}.items():
        if not (home / name).exists():
            (home / name).symlink_to(run / target)
    monkeypatch.setenv("FUSEVLM_EMBEDDED", str(home))
    return home


def test_ask_on_the_command_line(embedded, capsys):
    words = ["ask", str(embedded / "test-1.png"), "what colour", "-n", "6"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == JSON_FIELDS
    assert found["version"] == 2
    assert sum(found["samples"].values()) == found["n_samples"] == 6
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"P(wrong) {found['p_wrong']:.2f}" in text
    assert "6 samples: " in text
    assert "\x1b" not in text
    for bar, value in found["bars"].items():
        assert re.search(rf"^{bar} +[█░]{{24}} +{value:.0%}", text, re.MULTILINE)
    for name, count in list(found["samples"].items())[:5]:
        shown = " ".join(name.split())[:59] or "(nothing)"
        assert f"{count} × {shown}" in text
    model = ["--model", str(embedded / "run"), "--json"]
    assert main([*words, *model]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["answer"] == found["answer"]


def test_a_table_is_asked_in_rounds_and_goes_on_after_a_kill(embedded, capsys, monkeypatch):
    """--table with --fast: the same file, whether in one go or interrupted in the middle."""
    rows = [{"id": f"r{k}", "question": "what colour", "image": f"test-{k % 9}.png"}
            for k in range(40)]  # fmt: skip
    rows[5]["question"] = " "
    (embedded / "many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["ask", "--table", str(embedded / "many.jsonl"), "--model", str(embedded / "run")]
    words += ["--risk", "0.6", "--samples", "2"]
    one, two = embedded / "one.jsonl", embedded / "two.jsonl"
    assert main([*words, "--out", str(one)]) == 3
    lines = [json.loads(line) for line in one.read_text().splitlines()]
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    assert [line["id"] for line in lines if "error" in line] == ["r5"]
    assert all(line["generated"] >= 1 for line in lines if "error" not in line)
    real, calls = Assistant.ask_all, []

    def dies(self, queries, **terms):
        calls.append(len(queries))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, queries, **terms)

    monkeypatch.setattr(Assistant, "ask_all", dies)
    assert main([*words, "--out", str(two)]) == 130
    assert not two.exists()
    assert main([*words, "--out", str(two)]) == 3
    assert calls == [16, 16, 16, 8]  # the first sixteen are not asked again
    assert two.read_bytes() == one.read_bytes()
    assert not list(embedded.glob("*.begun"))
    capsys.readouterr()
    for bad in (["--fast", "-n", "3"], ["--fast", "--samples", "2"]):
        assert main(["ask", str(embedded / "test-1.png"), "what", *bad]) == 1
        assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "question", "message"),
    [
        ("none.png", "what", "none.png does not exist"),
        ("own.toml", "what", "is not a picture"),
        ("test-1.png", "  ", "the question is empty"),
    ],
)
def test_bad_questions_are_refused(embedded, capsys, image, question, message):
    assert main(["ask", str(embedded / image), question]) == 1
    assert message in capsys.readouterr().err


def test_more_bad_asks(embedded, tmp_path):
    assistant = load("embedded")
    with pytest.raises(InputError, match="question is empty"):
        assistant.ask(make_picture(0), "")
    with pytest.raises(InputError, match="n is -1"):
        assistant.ask(make_picture(0), "what", n=-1)
    with pytest.raises(InputError, match="risk is 2"):
        assistant.ask(make_picture(0), "what", risk=2)
    with pytest.raises(ArtefactError, match="no run folder"):
        load(tmp_path)


def test_missing_weights_are_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FUSEVLM_EMBEDDED", str(tmp_path))
    make_picture(0).save(tmp_path / "a.png")
    assert main(["ask", str(tmp_path / "a.png"), "what"]) == 1
    assert "is not at" in capsys.readouterr().err


JSON_FIELDS = set(Answer.__dataclass_fields__) | {"version", "n_samples"}


def test_an_answer_displays_without_trusting_its_text():
    hostile = "<b>x</b>"
    found = Answer(
        question=hostile, answer=hostile, decision="answer", reason="", why="Nothing about it is "
        "unusual.", cause="", side="", p_wrong=0.1, risk=0.2, delta=0.1, threshold=1.0,
        coverage=0.6, u=0.4, m0=0.1, evidence=0.2, m_post=0.3, sigma_post=0.5, novelty=0.3,
        bars={"aleatoric": 0.5}, added={"picture": 0.3}, samples={hostile: 2, "": 1},
        neighbours=[{"question": hostile, "answer": "", "wrong": True, "distance": 0.1}],
    )  # fmt: skip
    html = found._repr_html_()
    assert hostile not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "of those answers at most 20% are wrong" in html
    assert "(nothing)" in html
    assert "u* 0.40 ≤ 1.00" in str(found)
    assert set(found.as_dict()) == JSON_FIELDS
