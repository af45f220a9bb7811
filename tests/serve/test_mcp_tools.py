"""``fusevlm mcp``: its tools called by the SDK's own client."""

import asyncio
import json
import sys

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from tests.serve.live import ASK, CLEAN, QUESTION, SHAPE, noise
from tests.serve.test_serve_ask import same

from fusevlm.serve.agents import tools
from fusevlm.serve.desk import Desk, Offer
from fusevlm.serve.schemas import AnswerReply, ScoreReply


@pytest.fixture(scope="module")
def desk(assistant):
    desk = Desk(assistant, Offer("embedded"))
    yield desk
    desk.close()


def calls(server, *asked):
    """What a client is answered, call by call."""

    async def talk():
        async with Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in asked]

    return asyncio.run(talk())


def words(result):
    assert result.is_error
    return result.content[0].text


def test_the_tools_say_what_they_take_and_give(desk):
    async def listed():
        async with Client(tools(desk)) as client:
            return (await client.list_tools()).tools, client.instructions

    found, instructions = asyncio.run(listed())
    assert [tool.name for tool in found] == ["ask", "score"]
    ask, score = found
    assert ask.input_schema["required"] == ["question"]
    assert {"question", "image", "risk", "delta", "samples", "n", "seed"} == {
        *ask.input_schema["properties"]
    }
    assert set(ask.output_schema["properties"]) == set(AnswerReply.model_fields)
    assert set(score.output_schema["properties"]) == set(ScoreReply.model_fields)
    assert 'where it\nis "abstain", do not rely on the answer' in instructions


def test_ask_has_the_fields_of_the_server(desk, client):
    (found,) = calls(tools(desk), ("ask", {"question": QUESTION, "image": CLEAN, "risk": 0.1}))
    assert not found.is_error
    same(found.structured_content, client.post("/v1/ask", json={**ASK, "risk": 0.1}).json())
    assert json.loads(found.content[0].text)["answer"] == "circle"


def test_score_has_the_fields_of_the_server(desk, client):
    body = {"samples": ["Lima", "lima.", "Cusco"], "question": "the capital of Peru?"}
    (found,) = calls(tools(desk), ("score", body))
    assert found.structured_content == client.post("/v1/score", json=body).json()


def test_what_cannot_be_done_is_said_and_the_tools_go_on(desk):
    asked = [
        {"question": QUESTION, "image": "/etc/passwd"},
        {"question": QUESTION, "image": "http://127.0.0.1:1/x.png"},
        {"question": QUESTION, "image": "data:image/png;base64,QUJD"},
        {"question": QUESTION, "image": CLEAN, "risk": 2.0},
        {"question": "  ", "image": CLEAN},
        {"question": QUESTION},
        {"question": 3},
        {"question": QUESTION, "image": CLEAN, "n": 2},
    ]
    *bad, good = calls(tools(desk), *(("ask", one) for one in asked))
    said = [words(one) for one in bad]
    assert "no address is fetched and no file is read" in said[0]
    assert said[1] == said[0]
    assert "is not a picture" in said[2]
    assert "risk: input should be less than or equal to 0.999999" in said[3]
    assert "question: it is empty" in said[4]
    assert "send one" in said[5]
    assert good.structured_content["answer"] == "circle"


def test_what_fails_inside_is_not_told(assistant):
    class Broken:
        def __getattr__(self, name):
            return getattr(assistant, name)

        def ask_all(self, queries, **terms):
            raise RuntimeError("a private reason")

    desk = Desk(Broken(), Offer("embedded"))
    (found,) = calls(tools(desk), ("ask", {"question": QUESTION, "image": CLEAN}))
    desk.close()
    assert "the server failed" in words(found)
    assert "private" not in words(found)


def test_pictures_of_one_folder_may_be_named(desk, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "shape.png").write_bytes(SHAPE)
    (folder / "notes.txt").write_text("no picture")
    (tmp_path / "outside.png").write_bytes(SHAPE)
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    names = ["shape.png", "../outside.png", str(tmp_path / "outside.png"), "link.png", "gone.png",
             "notes.txt", "", ".", "a\x00b", CLEAN]  # fmt: skip
    asked = [("ask", {"question": QUESTION, "image": name, "n": 2}) for name in names]
    good, *bad, url = calls(tools(desk, folder), *asked)
    assert good.structured_content["answer"] == url.structured_content["answer"] == "circle"
    for name, one in zip(names[1:-1], bad, strict=True):
        assert str(tmp_path) not in words(one) or name == names[2]  # which the agent itself sent
    assert "outside of the folder" in words(bad[0])
    assert "outside of the folder" in words(bad[1])
    assert "outside of the folder" in words(bad[2])
    assert "there is no such file" in words(bad[3])
    assert "is not a picture" in words(bad[4])


@pytest.mark.slow
def test_an_agent_starts_the_command_and_calls_it():
    """Over standard input and output, which nothing else may be written to."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "fusevlm.cli", "mcp"])
    first, second = calls(
        server,
        ("ask", {"question": QUESTION, "image": CLEAN}),
        ("ask", {"question": QUESTION, "image": noise(3), "samples": "as needed"}),
    )
    assert (first.structured_content["answer"], first.structured_content["decision"]) == (
        "circle",
        "answer",
    )
    assert second.structured_content["decision"] == "abstain"
