"""The official ``openai`` client before our server, and llama.cpp's server behind it."""

from importlib.util import find_spec

import pytest
from tests.models.capitals import CAPITALS
from tests.models.real_servers import llama_cpp, need_llama_cpp
from tests.serve.live import CLEAN, QUESTION, chat, noise, served

import fusevlm
from fusevlm import Query, Scorer
from fusevlm.models.openai import OpenAI
from fusevlm.serve.answerers import Judged
from fusevlm.serve.desk import Offer

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-some-length"
N = 2


def official(server, token="none"):
    if find_spec("openai") is None:
        pytest.skip("openai is not installed: make .venv/.slow")
    import openai

    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=token, max_retries=0)


def messages(image=CLEAN):
    return chat(image=image)["messages"]


@pytest.fixture(scope="module")
def before(assistant):
    offer = Offer("embedded", on_abstain="flag")
    with (
        served(assistant, token=TOKEN, offer=offer) as (server, _),
        official(server, TOKEN) as client,
    ):
        yield client, server


def test_plain_with_a_picture(before):
    client, server = before
    assert [model.id for model in client.models.list()] == ["embedded"]
    found = client.chat.completions.create(model="embedded", messages=messages())
    assert found.choices[0].message.content == "circle"
    assert found.choices[0].finish_reason == "stop"
    verdict = found.fusevlm
    assert verdict["decision"] == "answer"
    asked = server.post("/v1/ask", json={"question": QUESTION, "image": CLEAN}).json()
    assert verdict["samples"] == asked["samples"]
    assert verdict["p_wrong"] == pytest.approx(asked["p_wrong"], abs=1e-4)
    raw = client.chat.completions.with_raw_response.create(model="embedded", messages=messages())
    assert raw.headers["x-fusevlm-decision"] == "answer"


def test_streaming_with_a_picture(before):
    client, _ = before
    for image in (CLEAN, noise(7)):
        whole = client.chat.completions.create(model="embedded", messages=messages(image))
        chunks = list(
            client.chat.completions.create(model="embedded", messages=messages(image), stream=True)
        )
        words = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert words == whole.choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].fusevlm["decision"] == whole.fusevlm["decision"]
        assert not any(hasattr(chunk, "fusevlm") for chunk in chunks[:-1])


def test_its_own_options_and_ours(before):
    client, _ = before
    found = client.chat.completions.create(
        model="embedded", messages=messages(noise(7)), temperature=0.3, max_tokens=9,
        extra_body={"fusevlm": {"risk": 0.2, "on_abstain": "refuse"}},
    )  # fmt: skip
    assert found.fusevlm["risk"] == 0.2
    assert sorted(found.fusevlm["ignored"]) == ["max_tokens", "temperature"]
    assert found.choices[0].message.content.startswith("I don't know.")


def test_faults_are_its_own_exceptions(before):
    client, server = before
    import openai

    with pytest.raises(openai.NotFoundError, match="no model is called 'gpt' here"):
        client.chat.completions.create(model="gpt", messages=messages())
    with pytest.raises(openai.UnprocessableEntityError, match="a picture must be a data URL"):
        client.chat.completions.create(
            model="embedded", messages=messages("https://example.org/a.png")
        )
    stranger = official(server, "another-token-altogether")
    with pytest.raises(openai.AuthenticationError, match="no valid token"):
        stranger.chat.completions.create(model="embedded", messages=messages())
    stranger.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_llama_cpp_behind_a_saved_fit(tmp_path):
    """SmolLM2 answers, our server judges; plain, streaming, and by the official client."""
    need_llama_cpp()
    queries = [
        Query(f"c{k}", f"What is the capital of {country}?", references=[capital])
        for k, (country, capital) in enumerate(list(CAPITALS.items())[:48])
    ]
    with llama_cpp() as url:
        model = OpenAI.load(f"smollm2@{url}", concurrency=2)
        rows = fusevlm.sample(model, queries, n=N)
        assert not [row.error for row in rows if row.error]
        Scorer.fit(rows, towers="none").save(tmp_path / "fit")
        answerer = Judged(model, Scorer.load(tmp_path / "fit"), n=N)
        with served(answerer, name="smollm2") as (server, _):
            found = server.post("/v1/ask", json={"question": "What is the capital of Peru?"})
            told = found.json()
            assert (found.status_code, told["n_samples"], told["model"]) == (200, N, "smollm2")
            assert 0 <= told["p_wrong"] <= 1
            print(told["answer"], told["decision"], told["reason"], told["p_wrong"])
            asked = [{"role": "user", "content": "What is the capital of France?"}]
            with official(server) as client:
                whole = client.chat.completions.create(model="smollm2", messages=asked)
                assert whole.fusevlm["decision"] in ("answer", "abstain")
                chunks = list(
                    client.chat.completions.create(model="smollm2", messages=asked, stream=True)
                )
                assert chunks[-1].fusevlm["n_samples"] == N
            shown = server.post("/v1/ask", json={"question": QUESTION, "image": CLEAN})
            assert shown.status_code == 422  # it takes no pictures
            assert "smollm2 takes no pictures" in shown.json()["error"]["message"]
            assert "127.0.0.1" not in shown.text
