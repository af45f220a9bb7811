"""POST /v1/ask and /v1/decide: the Assistant's own answers, whoever asks beside them."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.serve.live import ASK, CLEAN, QUESTION, SHAPE, Gate, code, data_url, noise, served

from fusevlm import Query
from fusevlm.serve.desk import Asked, Terms, digest_of
from fusevlm.serve.limits import Limits
from fusevlm.serve.schemas import AnswerReply

EXACT = ("answer", "samples", "decision", "reason", "why", "cause", "generated", "n_samples",
         "neighbours", "notes", "risk", "delta", "threshold", "coverage")  # fmt: skip
NEAR = ("p_wrong", "u", "m0", "evidence", "m_post", "sigma_post", "novelty")


def same(found, expected):
    """But for rounding: a batch of another size adds up in another order."""
    for name in EXACT:
        assert found[name] == expected[name], name
    for name in NEAR:
        assert found[name] == pytest.approx(expected[name], abs=1e-4), name


def alone(assistant, image, question, **terms):
    query = Query("ask", question, [image])
    (found,) = assistant.ask_all([Query(digest_of(query), question, [image])], **terms)
    return found.as_dict()


def test_the_answer_is_the_assistants_own(client, assistant):
    found = client.post("/v1/ask", json=ASK).json()
    same(found, alone(assistant, SHAPE, QUESTION))
    assert found["answer"] == "circle"
    assert found["decision"] == "answer"
    assert found["model"] == "embedded"
    assert set(found) == set(AnswerReply.model_fields)
    AnswerReply(**found)


def test_equal_questions_have_equal_answers_whenever_they_are_asked(client):
    first, second = (client.post("/v1/ask", json=ASK).json() for _ in range(2))
    assert first.pop("id") != second.pop("id")
    assert first == second
    other = client.post("/v1/ask", json={**ASK, "image": noise(1), "seed": 3}).json()
    again = client.post("/v1/ask", json={**ASK, "image": noise(1), "seed": 4}).json()
    assert other["samples"] != again["samples"]


def test_n_and_risk_and_delta_are_those_asked_for(client, assistant):
    terms = {"risk": 0.2, "delta": 0.05, "n": 7, "seed": 5}
    found = client.post("/v1/ask", json={**ASK, **terms}).json()
    same(found, alone(assistant, SHAPE, QUESTION, **terms))
    assert found["n_samples"] == 7


def test_one_picture_may_come_as_a_list(client):
    found = client.post("/v1/ask", json={"question": QUESTION, "images": [CLEAN]}).json()
    same(found, client.post("/v1/ask", json=ASK).json())


def test_clients_are_batched_and_each_has_its_own_answer(assistant):
    """Pictures, risks and deltas differ; samples serve any risk, so all share batches."""
    gate = Gate(assistant)
    bodies = [
        {"question": QUESTION, "image": noise(k), "risk": (0.05, 0.1, 0.3)[k % 3],
         "delta": (0.1, 0.2)[k % 2]}
        for k in range(20)
    ]  # fmt: skip
    with served(gate, limits=Limits(batch=8)) as (client, desk):
        gate.open.clear()
        with ThreadPoolExecutor(21) as pool:
            first = pool.submit(client.post, "/v1/ask", json=ASK)
            assert gate.entered.acquire(timeout=20)
            asked = [pool.submit(client.post, "/v1/ask", json=body) for body in bodies]
            while desk._queries.waiting < 20:
                threading.Event().wait(0.005)
            gate.open.set()
            found = [one.result().json() for one in asked]
        assert first.result().json()["answer"] == "circle"
        assert [len(batch) for batch in gate.batches] == [1, 8, 8, 4]
        gate.batches.clear()
        for body, one in list(zip(bodies, found, strict=True))[::3]:
            same(one, client.post("/v1/ask", json=body).json())
        assert {len(batch) for batch in gate.batches} == {1}
        assert 'fusevlm_batch_queries_bucket{le="8"} 11' in client.get("/metrics").text


def test_those_who_ask_the_same_share_one_answer(assistant):
    gate = Gate(assistant)
    with served(gate) as (client, desk):
        gate.open.clear()
        with ThreadPoolExecutor(9) as pool:
            pool.submit(client.post, "/v1/ask", json={**ASK, "seed": 9})
            assert gate.entered.acquire(timeout=20)
            asked = [pool.submit(client.post, "/v1/ask", json=ASK) for _ in range(8)]
            while desk._queries.waiting < 8:
                threading.Event().wait(0.005)
            gate.open.set()
            found = [one.result().json() for one in asked]
        assert len(gate.batches[1]) == 1
        assert len({one["id"] for one in found}) == 8
        assert len({json.dumps(one["samples"]) for one in found}) == 1


def test_a_broken_picture_is_its_own_askers_trouble(assistant):
    """Its header is whole, so that it is found out only in the batch."""
    gate = Gate(assistant)
    broken = data_url(SHAPE[: len(SHAPE) // 2])
    with served(gate) as (client, desk):
        gate.open.clear()
        with ThreadPoolExecutor(4) as pool:
            pool.submit(client.post, "/v1/ask", json={**ASK, "seed": 1})
            assert gate.entered.acquire(timeout=20)
            good = pool.submit(client.post, "/v1/ask", json=ASK)
            bad = pool.submit(client.post, "/v1/ask", json={**ASK, "image": broken})
            while desk._queries.waiting < 2:
                threading.Event().wait(0.005)
            gate.open.set()
            assert good.result().json()["answer"] == "circle"
            assert bad.result().status_code == 422
            assert "cannot be read as an image" in bad.result().json()["error"]["message"]


def events(reply):
    for block in reply.iter_lines():
        if block.startswith("event: "):
            kind = block[7:]
        elif block.startswith("data: "):
            yield kind, json.loads(block[6:])


def test_samples_arrive_one_after_the_other_and_then_the_answer(client):
    whole = client.post("/v1/ask", json=ASK).json()
    with client.stream("POST", "/v1/ask", json={**ASK, "stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        told = list(events(reply))
    assert [kind for kind, _ in told] == ["samples"] * 6 + ["answer"]
    counts = [sum(one["samples"].values()) for kind, one in told if kind == "samples"]
    assert counts == [2, 4, 8, 12, 16, 20]
    assert [one["p_wrong"] is None for _, one in told[:-1]] == [True] * 5 + [False]
    same(told[-1][1], whole)


def test_as_few_samples_as_the_decision_needs(client, assistant):
    body = {**ASK, "samples": "as needed"}
    found = client.post("/v1/ask", json=body).json()
    same(found, alone(assistant, SHAPE, QUESTION, samples="as needed"))
    assert found["generated"] < 21
    with client.stream("POST", "/v1/ask", json={**body, "stream": True}) as reply:
        told = list(events(reply))
    *_, (_, last), (_, answer) = told
    assert last["p_wrong"] == answer["p_wrong"] == pytest.approx(found["p_wrong"], abs=1e-6)
    assert all(one["p_wrong"] is not None for _, one in told)
    own = {name: found[name] for name in ("id", "risk", "delta")}
    assert client.post("/v1/decide", json=own).json() == found
    for other in ({"risk": 0.2}, {"delta": 0.2}):
        refused = client.post("/v1/decide", json={**own, **other})
        assert (refused.status_code, code(refused)) == (409, "other_risk")


def test_answers_alone_are_decided_at_each_ones_risk(client, assistant):
    for risk in (0.1, 0.3):
        found = client.post("/v1/ask", json={**ASK, "n": 0, "risk": risk}).json()
        same(found, alone(assistant, SHAPE, QUESTION, n=0, risk=risk))
        assert (found["generated"], found["samples"], found["risk"]) == (1, {}, risk)
    terms = [Terms(risk, 0.1, n=n) for n in (0, None) for risk in (0.1, 0.3)]
    keys = [Asked(Query("q", "what"), own, "q").key for own in terms]
    assert len(set(keys)) == 3  # with samples any risk goes together, without none does


@pytest.mark.parametrize("image", [CLEAN, noise(7)], ids=["clean", "noise"])
def test_another_risk_decides_as_asking_at_it_would(client, image):
    name = client.post("/v1/ask", json={**ASK, "image": image}).json()["id"]
    for risk in (0.01, 0.1, 0.3, 0.5):
        found = client.post("/v1/decide", json={"id": name, "risk": risk}).json()
        same(found, client.post("/v1/ask", json={**ASK, "image": image, "risk": risk}).json())
        assert found["id"] == name


def test_the_last_answers_are_known_and_no_more(assistant):
    with served(assistant, limits=Limits(known=2)) as (client, desk):
        names = [
            client.post("/v1/ask", json={**ASK, "image": noise(k), "n": 2}).json()["id"]
            for k in range(3)
        ]
        codes = [client.post("/v1/decide", json={"id": name}).status_code for name in names]
        assert codes == [404, 200, 200]
        assert len(desk.memory) == 2


def test_history_goes_with_the_question(client, assistant):
    history = [{"role": "user", "text": "is it blue?"}, {"role": "assistant", "text": "no"}]
    found = client.post("/v1/ask", json={**ASK, "history": history, "n": 4}).json()
    turns = [(turn["role"], turn["text"]) for turn in history]
    query = Query("ask", QUESTION, [SHAPE], turns)
    (expected,) = assistant.ask_all([Query(digest_of(query), QUESTION, [SHAPE], turns)], n=4)
    assert found["samples"] == expected.as_dict()["samples"]


def test_a_model_of_pictures_wants_one(client):
    refused = client.post("/v1/ask", json={"question": QUESTION})
    assert (refused.status_code, code(refused)) == (422, "cannot_ask")
    assert "send one" in refused.json()["error"]["message"]
