"""A model behind another server, judged by a saved Scorer: the toy of tests/models."""

import json
import time

import pytest
from tests.models.chat_server import serving
from tests.pipeline.test_text_only import CONFIG, save_tables
from tests.serve.live import CLEAN, code, served

import fusevlm
from fusevlm import Query, Sampled, Scorer
from fusevlm.cli import main
from fusevlm.models.openai import OpenAI
from fusevlm.serve.answerers import Judged, load_answerer, public_name
from fusevlm.serve.desk import digest_of
from fusevlm.serve.limits import Limits

N = 6
KEY = "sk-a-very-private-key"


@pytest.fixture(scope="module")
def upstream():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def model(upstream):
    return OpenAI.load(f"toy@{upstream.url}", retries=0, timeout=2.0, concurrency=4)


@pytest.fixture(scope="module")
def scorer(model, tmp_path_factory):
    """Fitted on the toy's own answers, saved and read again: wrong where its samples disagree."""
    queries = [Query(f"q{k}", f"what is number {k}?") for k in range(160)]
    rows = fusevlm.sample(model, queries, n=N)
    apart = [sum(text != row.samples.answer for text in row.samples.texts) for row in rows]
    labelled = [
        Sampled(row.query, row.samples, wrong=more + (k % 5 == 0) > 3)
        for k, (row, more) in enumerate(zip(rows, apart, strict=True))
    ]
    folder = tmp_path_factory.mktemp("fit") / "toy"
    Scorer.fit(labelled, towers="none").save(folder)
    return Scorer.load(folder)


@pytest.fixture(scope="module")
def server(model, scorer):
    with served(Judged(model, scorer, n=N), scorer=scorer, name="toy") as both:
        yield both


def test_asking_is_sampling_and_judging(server, model, scorer):
    client, _ = server
    found = client.post("/v1/ask", json={"question": "what is number 7?", "risk": 0.3}).json()
    name = digest_of(Query("ask", "what is number 7?"))
    (row,) = fusevlm.sample(model, [Query(name, "what is number 7?")], n=N)
    (judged,) = scorer.judge([Sampled(row.query, row.samples)], risk=0.3)
    # several answers of one call have no seed: only what does not rest on them is the same
    assert found["answer"] == judged.answer.answer
    assert found["n_samples"] == N
    assert found["risk"] == 0.3
    assert found["model"] == "toy"


def test_brought_samples_are_judged_as_apply_judges_them(server, model, scorer):
    """POST /v1/score is ``fusevlm apply`` of one row."""
    client, _ = server
    rows = fusevlm.sample(model, [Query(f"n{k}", f"what is number {k}?") for k in range(4)], n=N)
    for row in rows:
        said = row.samples
        body = {
            "question": row.query.question, "samples": list(said.texts), "answer": said.answer,
            "logprobs": [list(map(float, one)) for one in said.token_logprobs],
            "answer_logprobs": list(map(float, said.answer_logprobs)), "risk": 0.3,
        }  # fmt: skip
        found = client.post("/v1/score", json=body).json()
        (expected,) = scorer.judge([row], risk=0.3)
        told = expected.answer.as_dict()
        for key in ("answer", "decision", "reason", "why", "p_wrong", "u", "bars", "samples"):
            assert found["judged"][key] == told[key], key
        assert found["id"] == found["judged"]["id"]
        share = sum(text != said.answer for text in said.texts) / N
        assert found["measures"]["disagreement"] == pytest.approx(share)
        again = client.post("/v1/decide", json={"id": found["id"], "risk": 0.5}).json()
        (at_half,) = scorer.judge([row], risk=0.5)
        assert again["decision"] == at_half.answer.decision


def test_samples_arrive_from_an_upstream_too(server):
    client, _ = server
    body = {"question": "what is number 3?", "stream": True}
    text = client.post("/v1/ask", json=body).text
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [sum(one["samples"].values()) for one in told[:-1]] == [2, 4, 6]
    assert told[-1]["n_samples"] == 6


def test_a_picture_goes_on_to_the_upstream(server, upstream):
    client, _ = server
    upstream.bodies.clear()
    body = {"question": "what is number 3?", "image": CLEAN}
    assert client.post("/v1/ask", json=body).status_code == 200
    shown = upstream.bodies[0]["messages"][0]["content"][0]["image_url"]["url"]
    assert shown.startswith("data:image/png;base64,")


def test_a_broken_upstream_is_told_as_such(model, scorer, upstream, monkeypatch):
    """502, without its address, its words or the key; /readyz says so until it is back."""
    monkeypatch.setenv("FUSEVLM_API_KEY", KEY)
    with served(Judged(model, scorer, n=N), name="toy", limits=Limits(seconds=20)) as (client, _):
        assert client.get("/readyz").status_code == 200
        for fault in ("500", "hang up", "half", "not json", "echo", "401", "no choices", "503"):
            upstream.break_down(fault)
            reply = client.post("/v1/ask", json={"question": f"is it {fault}?"})
            assert reply.status_code == 502, (fault, reply.text)
            assert code(reply) == "no_answer"
            for private in (KEY, upstream.url, "127.0.0.1", "HTTP", "oops"):
                assert private not in reply.text
        reply = client.get("/readyz")
        assert (reply.status_code, code(reply)) == (503, "not_ready")
        assert "fusevlm_ready 0" in client.get("/metrics").text
        upstream.break_down(None)
        assert client.post("/v1/ask", json={"question": "is it back?"}).status_code == 200
        assert client.get("/readyz").status_code == 200


def test_a_server_that_nobody_asks_may_be_asked_again(model, scorer, upstream, monkeypatch):
    """Who heeds /readyz sends no query, and only a query could tell that the upstream is back."""
    monkeypatch.setattr("fusevlm.serve.desk.AGAIN", 0.5)
    with served(Judged(model, scorer, n=N), name="toy") as (client, _):
        upstream.break_down("503")
        assert client.post("/v1/ask", json={"question": "is it down?"}).status_code == 502
        assert client.get("/readyz").status_code == 503
        upstream.break_down(None)
        time.sleep(0.6)
        assert client.get("/readyz").status_code == 200
        assert client.post("/v1/ask", json={"question": "is it back?"}).status_code == 200
        assert client.get("/readyz").status_code == 200


def test_what_the_upstream_refuses_is_the_askers_trouble(model, scorer, upstream):
    with served(Judged(model, scorer, n=N), name="toy") as (client, _):
        upstream.break_down("too long")
        reply = client.post("/v1/ask", json={"question": "is it too long?"})
        upstream.break_down(None)
        assert (reply.status_code, code(reply)) == (422, "cannot_ask")


def test_the_address_of_the_upstream_is_nobodys_business(scorer, upstream):
    upstream.skills["images"] = "no"
    try:
        blind = OpenAI.load(f"toy@{upstream.url}", retries=0)
    finally:
        upstream.skills["images"] = "yes"
    with served(Judged(blind, scorer, n=N), name="public") as (client, _):
        reply = client.post("/v1/ask", json={"question": "x?", "image": CLEAN})
    assert (reply.status_code, code(reply)) == (422, "cannot_ask")
    assert "public takes no pictures" in reply.json()["error"]["message"]
    assert upstream.url not in reply.text


def test_a_run_folder_of_an_upstream_is_served_by_its_own_fit(upstream, model, tmp_path):
    """``fusevlm serve --model RUN`` where the run's config names openai:NAME@URL."""

    def answers(asked):
        queries = [Query(str(k), text) for k, text in enumerate(asked)]
        return [row.samples.answer for row in fusevlm.sample(model, queries, n=1)]

    save_tables(tmp_path, answers)
    config = CONFIG.format(
        model=f"openai:toy@{upstream.url}", towers="none", adapter="none", statistics="[]"
    )
    (tmp_path / "own.toml").write_text(config)
    assert main(["calibrate", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run")]) == 0
    answerer = load_answerer(str(tmp_path / "run"))
    with served(answerer, name=public_name(tmp_path / "run")) as (client, desk):
        found = client.post("/v1/ask", json={"question": "what colour is it?", "risk": 0.3}).json()
        assert (found["n_samples"], found["model"]) == (4, "run")
        assert found["decision"] in ("answer", "abstain")
        assert desk.usual == 4
        again = client.post("/v1/decide", json={"id": found["id"], "risk": 0.5}).json()
        assert again["samples"] == found["samples"]


def test_rounds_need_a_fit_that_knows_them(server):
    reply = server[0].post("/v1/ask", json={"question": "x?", "samples": "as needed"})
    assert (reply.status_code, code(reply)) == (422, "cannot_ask")
    assert "knows no rounds" in reply.json()["error"]["message"]


def test_a_server_without_a_model_judges_samples(scorer):
    with served(None, scorer=scorer, name="none") as (client, _):
        for path, body in (
            ("/v1/ask", {"question": "x?"}),
            ("/v1/chat/completions",
             {"model": "none", "messages": [{"role": "user", "content": "x?"}]}),
        ):  # fmt: skip
            reply = client.post(path, json=body)
            assert (reply.status_code, code(reply)) == (404, "no_model")
        assert client.get("/v1/models").json()["data"] == []
        body = {"samples": ["a", "b"], "logprobs": [[-1.0], [-2.0]]}
        assert client.post("/v1/score", json=body).json()["judged"]["decision"] in (
            "answer",
            "abstain",
        )
        assert client.get("/").status_code == 200


def test_large_answers_are_forgotten_sooner(scorer):
    """Two hundred samples of four thousand tokens are 6.6 MB each time."""
    limits = Limits(known_bytes=4_000_000)
    body = {"samples": ["a"] * 50, "logprobs": [[-1.0] * 4000] * 50}
    with served(None, scorer=scorer, name="none", limits=limits) as (client, desk):
        names = [client.post("/v1/score", json=body).json()["id"] for _ in range(4)]
        codes = [client.post("/v1/decide", json={"id": name}).status_code for name in names]
        assert codes == [404, 404, 200, 200]
        small = {"samples": ["a", "b"], "logprobs": [[-1.0], [-2.0]]}
        for _ in range(20):
            client.post("/v1/score", json=small)
        assert len(desk.memory) == 22


def test_a_fit_says_what_it_lacks(server):
    client, _ = server
    reply = client.post("/v1/score", json={"samples": ["a", "b"]})  # no log-probabilities
    assert (reply.status_code, code(reply)) == (422, "cannot_ask")
    reply = client.post("/v1/score", json={"samples": ["a", "b"], "columns": {"margin": 1.0}})
    assert "which the fit did not have" in reply.json()["error"]["message"]


def test_a_fit_that_rests_on_columns_cannot_ask(model):
    rows = [
        Sampled(Query(f"q{k}", "x?"), fusevlm.Samples(["a"] * (8 - k % 5) + ["b"] * (k % 5)),
                wrong=k % 5 > 2, columns={"mine": float(k % 3)})
        for k in range(120)
    ]  # fmt: skip
    scorer = Scorer.fit(rows, towers="none", evidence=["mine"])
    with pytest.raises(fusevlm.FuseError, match="columns mine, which a model does not bring"):
        Judged(model, scorer)
    with served(None, scorer=scorer, name="none") as (client, _):
        body = {"samples": ["a", "b"], "columns": {"mine": 1.0}}
        assert client.post("/v1/score", json=body).status_code == 200
        reply = client.post("/v1/score", json={"samples": ["a", "b"]})
        assert "columns lacks 'mine'" in reply.json()["error"]["message"]


def test_a_model_is_called_without_its_address_or_folder(tmp_path, monkeypatch):
    assert public_name("openai:llava@http://10.0.0.1:8000/v1") == "llava"
    assert public_name("openai:me@home@https://x.example/v1") == "me@home"
    assert public_name("/home/me/runs/own-vlm") == "own-vlm"
    assert public_name("vllm:org/model") == "model"
    assert public_name("embedded") == "embedded"
    (tmp_path / "run" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run" / "data")
    assert (public_name("."), public_name("..")) == ("data", "run")
    with pytest.raises(fusevlm.FuseError, match="is no run folder"):
        load_answerer("openai:toy@http://127.0.0.1:1/v1")
