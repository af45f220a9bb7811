"""POST /v1/chat/completions and GET /v1/models: OpenAI's protocol, judged before the first word."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.serve.live import ASK, CLEAN, QUESTION, Gate, chat, code, noise, served
from tests.serve.test_serve_ask import same

from fusevlm.serve.desk import Offer
from fusevlm.serve.schemas import ChatReply

PATH = "/v1/chat/completions"
STRANGE = noise(7)


def parts(text, times):
    return [{"type": "text", "text": text}] * times


def chunks(reply):
    lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_an_answer_that_is_given_is_just_the_answer(client):
    reply = client.post(PATH, json=chat())
    found = reply.json()
    ChatReply(**found)
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "circle"}
    assert found["choices"][0]["finish_reason"] == "stop"
    same(found["fusevlm"], client.post("/v1/ask", json=ASK).json())
    assert found["fusevlm"]["ignored"] == []


def test_the_headers_tell_in_short_and_only_unstreamed(client):
    reply = client.post(PATH, json=chat())
    verdict = reply.json()["fusevlm"]
    assert reply.headers["x-fusevlm-decision"] == "answer"
    assert float(reply.headers["x-fusevlm-p-wrong"]) == pytest.approx(verdict["p_wrong"], abs=1e-4)
    assert reply.headers["x-fusevlm-id"] == verdict["id"]
    streamed = client.post(PATH, json=chat(stream=True))
    assert not [name for name in streamed.headers if name.startswith("x-fusevlm")]


def test_an_abstention_is_flagged_or_refused(client):
    flagged = client.post(PATH, json=chat(image=STRANGE)).json()
    verdict, text = flagged["fusevlm"], flagged["choices"][0]["message"]["content"]
    assert verdict["decision"] == "abstain"
    assert text.startswith(f"{verdict['answer']}\n\n[Not certain enough for a risk of 0.05: ")
    assert verdict["why"] in text
    assert f"P(wrong) {verdict['p_wrong']:.2f}." in text
    body = chat(image=STRANGE, fusevlm={"on_abstain": "refuse"})
    refused = client.post(PATH, json=body).json()
    text = refused["choices"][0]["message"]["content"]
    assert text == f"I don't know. {verdict['why']}"
    assert verdict["answer"] not in text


def test_a_server_may_refuse_as_a_rule_and_a_request_otherwise(assistant):
    with served(assistant, offer=Offer("embedded", on_abstain="refuse")) as (client, _):
        text = client.post(PATH, json=chat(image=STRANGE)).json()["choices"][0]["message"]
        assert text["content"].startswith("I don't know.")
        body = chat(image=STRANGE, fusevlm={"on_abstain": "flag"})
        text = client.post(PATH, json=body).json()["choices"][0]["message"]
        assert "[Not certain enough" in text["content"]


def test_the_risk_of_a_request_counts(client):
    found = client.post(PATH, json=chat(fusevlm={"risk": 0.3, "delta": 0.2, "n": 4})).json()
    same(
        found["fusevlm"],
        client.post("/v1/ask", json={**ASK, "risk": 0.3, "delta": 0.2, "n": 4}).json(),
    )


@pytest.mark.parametrize("image", [CLEAN, STRANGE], ids=["given", "abstained"])
def test_a_stream_says_the_same_and_its_last_chunk_tells(client, image):
    whole = client.post(PATH, json=chat(image=image)).json()
    with client.stream("POST", PATH, json=chat(image=image, stream=True)) as reply:
        found = chunks(reply)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    words = "".join(one["choices"][0]["delta"].get("content", "") for one in found)
    assert words == whole["choices"][0]["message"]["content"]
    assert [one["choices"][0]["finish_reason"] for one in found] == [None] * (len(found) - 1) + [
        "stop"
    ]
    assert ["fusevlm" in one for one in found] == [False] * (len(found) - 1) + [True]
    same(found[-1]["fusevlm"], whole["fusevlm"])
    assert {one["id"] for one in found} == {found[0]["id"]}


def test_nothing_is_sent_before_the_decision(assistant):
    """Not even the status: what goes wrong before it has a status of its own."""
    gate = Gate(assistant)
    with served(gate) as (client, _), ThreadPoolExecutor(1) as pool:
        gate.open.clear()
        begun = pool.submit(lambda: client.send(
            client.build_request("POST", PATH, json=chat(stream=True)), stream=True
        ))  # fmt: skip
        assert gate.entered.acquire(timeout=20)
        assert not begun.done()
        gate.open.set()
        reply = begun.result(20)
        assert chunks(reply)[-1]["fusevlm"]["decision"] == "answer"
        reply.close()


def test_what_is_not_heeded_is_told(client):
    body = chat(temperature=0.2, max_tokens=5, user="me", top_p=None)
    body["messages"].insert(0, {"role": "system", "content": "Be brief."})
    found = client.post(PATH, json=body).json()
    assert found["fusevlm"]["ignored"] == ["temperature", "max_tokens", "messages of the system"]
    same(found["fusevlm"], client.post("/v1/ask", json=ASK).json())


def test_what_is_not_heeded_may_be_long(client):
    body = chat(fusevlm={"n": 2})
    body["messages"].insert(0, {"role": "system", "content": "Be brief. " * 1000})
    reply = client.post(PATH, json=body)
    assert (reply.status_code, reply.json()["fusevlm"]["ignored"]) == (
        200,
        ["messages of the system"],
    )


def test_a_conversation_is_history_and_its_pictures_go_with_the_question(client):
    first = chat("is it blue?")["messages"]
    turns = [*first, {"role": "assistant", "content": "no"}, {"role": "user", "content": QUESTION}]
    found = client.post(PATH, json={"model": "embedded", "messages": turns}).json()
    history = [{"role": "user", "text": "is it blue?"}, {"role": "assistant", "text": "no"}]
    same(found["fusevlm"], client.post("/v1/ask", json={**ASK, "history": history}).json())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (chat(tools=[{"type": "function"}]), "tools: none are called here"),
        (chat(""), "messages: the last one has no text"),
        (chat(n=2), "n: input should be 1"),
        ({**chat(), "messages": []}, "messages: list should have at least 1 item"),
        ({"model": "embedded", "messages": [{"role": "assistant", "content": "x"}]},
         "messages: the last one must be the user's"),
        ({"model": "embedded", "messages": [{"role": "user", "content": [{"type": "image_url"}]},
                                            {"role": "user", "content": "x"}]},
         "a part of type image_url has no image_url"),
        ({"model": "embedded", "messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"model": "embedded", "messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        (chat(fusevlm={"rsik": 0.1}), "fusevlm.rsik"),
        (chat(fusevlm={"n": 4, "samples": 3.0}), "n: given beside samples; give one of them"),
        (chat("x" * 4001), "messages: one is longer than 4000 characters"),
        ({"model": "embedded", "messages": [{"role": "user", "content": parts("x" * 3000, 2)},
                                            {"role": "user", "content": "x"}]},
         "messages: one is longer than 4000 characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_said(client, body, words):
    refused = client.post(PATH, json=body)
    assert (refused.status_code, code(refused)) == (422, "invalid")
    assert words in refused.json()["error"]["message"]


def test_the_model_goes_by_its_public_name(client):
    (served_model,) = client.get("/v1/models").json()["data"]
    assert served_model["id"] == "embedded"
    refused = client.post(PATH, json={**chat(), "model": "gpt"})
    assert (refused.status_code, code(refused)) == (404, "unknown_model")
