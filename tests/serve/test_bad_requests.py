"""Bad input: the right status and message, no trace, no leak, and the server lives."""

import asyncio
import gc
import io
import json
import logging
import re
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from string import Formatter
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
from PIL import Image, ImageFile
from pydantic import ValidationError
from tests.serve.live import ASK, CLEAN, QUESTION, SHAPE, Gate, chat, code, data_url, noise, served

from fusevlm.serve.faults import FAULTS, LEFT
from fusevlm.serve.feedback import Feedback
from fusevlm.serve.guard import HERE
from fusevlm.serve.limits import Limits
from fusevlm.serve.logs import LOGGER, JsonLines
from fusevlm.serve.schemas import AskRequest, ChatRequest, ScoreRequest

TOKEN = "0123456789abcdef-a-token"
SECRET = "the secret of the question"


def bomb(width, height):
    """A PNG of a few kilobytes that would be an image of so many pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(
            ">I", zlib.crc32(kind + data)
        )  # fmt: skip

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    body = zlib.compress(bytes((width + 7) // 8 + 1) * min(height, 5000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def lives(client):
    """The server still answers, and well."""
    assert client.get("/healthz").json() == {"status": "ok"}
    found = client.post("/v1/ask", json={**ASK, "n": 2})
    assert (found.status_code, found.json()["answer"]) == (200, "circle")


@pytest.fixture(scope="module")
def guarded(assistant, tmp_path_factory):
    """A server with a token, a feedback table, a gate, and little patience."""
    gate = Gate(assistant)
    table = tmp_path_factory.mktemp("feedback") / "told.jsonl"
    limits = Limits(
        queue=4, batch=2, seconds=40, body_seconds=0.7, idle_seconds=0.5, body_bytes=2_000_000,
        held_bytes=6_000_000, pixels=1_000_000,
    )  # fmt: skip
    with served(gate, token=TOKEN, limits=limits, feedback=Feedback(table)) as (client, desk):
        yield client, desk, gate


@pytest.fixture
def log():
    """What the log says meanwhile, as text."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    own, before = logging.getLogger(LOGGER), logging.getLogger(LOGGER).level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    own.setLevel(before)


def post(path="/v1/ask", **body):
    return lambda client: client.post(path, json=body)


def raw(content, path="/v1/ask"):
    return lambda client: client.post(
        path, content=content, headers={"Content-Type": "application/json"}
    )


def picture(url):
    return post(question=QUESTION, image=url)


def told_twice(client):
    name = client.post("/v1/ask", json={**ASK, "n": 2}).json()["id"]
    assert client.post("/v1/feedback", json={"id": name, "wrong": True}).status_code == 200
    return client.post("/v1/feedback", json={"id": name, "wrong": False})


def in_rounds(client):
    name = client.post("/v1/ask", json={**ASK, "samples": "as needed"}).json()["id"]
    return client.post("/v1/decide", json={"id": name, "risk": 0.3})


# code: what meets with it; those with none are made below, by name
MADE = {
    "malformed_json": raw(b'{"question": "wh'),
    "wrong_token": lambda client: client.get("/v1/models", headers={"Authorization": "Bearer no"}),
    "nothing_here": lambda client: client.get("/v2/ask"),
    "unknown_model": lambda client: client.post(
        "/v1/chat/completions", json={**chat(), "model": "gpt\u202e\x1b[31m"}
    ),
    "unknown_answer": post("/v1/decide", id="fv-none"),
    "wrong_method": lambda client: client.get("/v1/ask"),
    "other_risk": in_rounds,
    "told_otherwise": told_twice,
    "too_large": picture("data:image/png;base64," + "A" * 50_000_000),
    "too_many_pixels": picture(data_url(bomb(50_000, 50_000))),
    "not_json": lambda client: client.post("/v1/ask", content="question=x"),
    "other_host": lambda client: client.get("/healthz", headers={"Host": "evil.example"}),
    "invalid": post(question=7),
    "not_a_data_url": picture("http://127.0.0.1:1/picture.png"),
    "not_a_picture": picture(data_url(b"GIF89a, or so it says")),
    "cannot_ask": post(question="what is <image>?", image=CLEAN),
}
ELSEWHERE = {  # code: the test that makes it
    "no_model": "test_a_server_without_a_model_judges_samples",
    "no_feedback": "test_feedback_is_kept_only_where_it_is_wanted",
    "slow_request": "test_a_slow_client_is_not_waited_for",
    "busy": "test_two_hundred_clients_and_a_short_queue",
    "server_failed": "test_what_fails_inside_is_not_shown",
    "no_answer": "test_a_broken_upstream_is_told_as_such",
    "not_ready": "test_a_broken_upstream_is_told_as_such",
    "too_slow": "test_an_answer_that_takes_too_long_is_not_waited_for",
}


def test_every_fault_is_met_with_somewhere():
    from pathlib import Path

    assert set(MADE) | set(ELSEWHERE) == set(FAULTS)
    written = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert all(f"def {name}(" in written for name in ELSEWHERE.values())


def shaped(fault):
    """The pattern that the message of a fault follows."""
    return "".join(
        re.escape(text) + ("" if field is None else ".*")
        for text, field, *_ in Formatter().parse(FAULTS[fault][1])
    )


@pytest.mark.parametrize("fault", MADE)
def test_status_and_message(guarded, log, fault):
    client, _, _ = guarded
    reply = MADE[fault](client)
    told = reply.json()["error"]
    assert (reply.status_code, told["code"]) == (FAULTS[fault][0], fault)
    assert re.fullmatch(shaped(fault), told["message"])
    assert told["message"].isprintable()
    assert len(told["message"]) <= 400
    assert told["request_id"] == reply.headers["x-request-id"]
    until(lambda: f'"code": "{fault}"' in log.getvalue())  # it is written after the reply
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["status"] for line in lines if line.get("code") == fault] == [FAULTS[fault][0]]
    lives(client)


NOT_PICTURES = {
    "text": b"I am a picture.",
    "nothing": b"",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "pdf": b"%PDF-1.4\n1 0 obj\n",
    "half a header": SHAPE[:20],
    "half a picture": SHAPE[:300],
    "noise after the header": SHAPE[:40] + bytes(range(256)) * 4,
}


@pytest.mark.parametrize("name", NOT_PICTURES)
@pytest.mark.parametrize("path", ["/v1/ask", "/v1/chat/completions", "/v1/score"])
def test_what_is_no_picture(server, name, path):
    client = server[0]
    url = data_url(NOT_PICTURES[name])
    body = {
        "/v1/ask": {"question": QUESTION, "image": url},
        "/v1/chat/completions": chat(image=url),
        "/v1/score": {"samples": ["a"], "image": url},
    }[path]
    reply = client.post(path, json=body)
    if path == "/v1/score" and name in ("half a picture", "noise after the header"):
        assert reply.status_code in (200, 422)  # nobody looks at it without a fit
        return
    assert (reply.status_code, code(reply)) in [(422, "not_a_picture"), (422, "cannot_ask")]
    assert "Traceback" not in reply.text


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png", "file:///etc/passwd", "/etc/passwd", "../shape.png", "",
        "data:text/plain;base64,QUJD", "data:image/png,QUJD", "data:image/png;base64",
        "data:;base64,QUJD", "ftp://x/y", "//127.0.0.1/x.png", "blob:x",
    ],
)  # fmt: skip
def test_only_data_urls_are_pictures(client, url):
    reply = client.post("/v1/ask", json={"question": QUESTION, "image": url})
    assert (reply.status_code, code(reply)) == (422, "not_a_data_url")


def test_no_address_is_ever_fetched(client):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.3)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x.png"
        for path, body in (
            ("/v1/ask", {"question": QUESTION, "image": url}),
            ("/v1/chat/completions", chat(image=url)),
            ("/v1/score", {"samples": ["a"], "image": url}),
        ):
            assert code(client.post(path, json=body)) == "not_a_data_url"
        with pytest.raises(TimeoutError):
            listening.accept()


@pytest.mark.parametrize(("width", "height"), [(50_000, 50_000), (2000, 1000), (9000, 9000)])
def test_a_bomb_is_measured_and_not_opened(guarded, monkeypatch, width, height):
    client, _, _ = guarded
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was opened"))
    reply = client.post("/v1/ask", json={**ASK, "image": data_url(bomb(width, height))})
    assert (reply.status_code, code(reply)) == (413, "too_many_pixels")
    monkeypatch.undo()
    lives(client)


def test_fifty_megabytes_are_not_read(guarded):
    """Neither with their length told nor without it, and memory does not grow by them."""
    client, _, _ = guarded

    def blocks():
        for _ in range(50):
            yield b" " * 1_000_000

    before = resident()
    reply = client.post("/v1/ask", content=blocks(), headers={"Content-Type": "application/json"})
    assert (reply.status_code, code(reply)) == (413, "too_large")
    reply = client.post("/v1/ask", json={**ASK, "image": "A" * 50_000_000})
    assert (reply.status_code, code(reply)) == (413, "too_large")
    assert reply.json()["error"]["message"] == (
        "the request is larger than 2 MB; send a smaller picture."
    )
    assert resident() - before < 150e6  # the client itself holds a copy or two
    lives(client)


def resident():
    from pathlib import Path

    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[1, 2", b'{"question": "a"} x', b"\xff\xfe", b"nothing", b'{"a": \x00}',
        b"[" * 100_000, b'{"question": ' * 20_000, b'{"question": "\\ud800"}',
        b'{"question": "x", "seed": 1' + b"0" * 6000 + b"}",
        b'{"question": "x", "risk": NaN}', b'{"question": "x", "risk": 1e999}', b"null", b"3",
        b'{"question": "x", "risk": -Infinity}', b'{"question": "x", "question": ["y"]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/ask", "/v1/chat/completions", "/v1/score", "/v1/decide"])
def test_what_is_no_json_or_no_request(client, path, content):
    reply = raw(content, path)(client)
    assert reply.status_code in (400, 422)
    assert code(reply) in ("malformed_json", "invalid")


WRONG_TYPES = [
    {"question": None}, {"question": ["x"]}, {"question": {}}, {"question": ""}, {"question": "  "},
    {"question": "x" * 4001}, {"question": "x", "risk": "0.1"}, {"question": "x", "risk": 0},
    {"question": "x", "risk": 1}, {"question": "x", "risk": True}, {"question": "x", "delta": -1},
    {"question": "x", "n": 2.5}, {"question": "x", "n": -1}, {"question": "x", "n": 100_000},
    {"question": "x", "n": "2"}, {"question": "x", "seed": -1}, {"question": "x", "seed": 2**40},
    {"question": "x", "samples": "all"}, {"question": "x", "samples": -2},
    {"question": "x", "n": 2, "samples": 3.0}, {"question": "x", "image": 5},
    {"question": "x", "image": [CLEAN]}, {"question": "x", "images": CLEAN},
    {"question": "x", "images": [CLEAN] * 5}, {"question": "x", "image": CLEAN, "images": [CLEAN]},
    {"question": "x", "history": [{"role": "system", "text": "x"}]}, {"question": "x", "rsik": 1},
    {"question": "x", "history": "x"}, {"question": "x", "stream": "yes"}, {}, {"image": CLEAN},
]  # fmt: skip


@pytest.mark.parametrize("body", WRONG_TYPES, ids=lambda body: json.dumps(body)[:40])
def test_wrong_types(client, body):
    reply = client.post("/v1/ask", json=body)
    assert (reply.status_code, code(reply)) == (422, "invalid")
    where = reply.json()["error"]["message"].split(":")[0]
    assert where.split(".")[0] in {*body, "question", "image", "n"}


@pytest.mark.parametrize(
    "body",
    [
        {"samples": []}, {"samples": "x"}, {"samples": [1]}, {"samples": ["x"] * 201}, {},
        {"samples": ["x"], "logprobs": [[0.5]]}, {"samples": ["x"], "logprobs": []},
        {"samples": ["x"], "logprobs": [[-1.0], [-1.0]]}, {"samples": ["x"], "logprobs": [[]]},
        {"samples": ["x"], "columns": {"a": "b"}}, {"samples": ["x"], "answer": 3},
        {"samples": ["x"], "answer_logprobs": [[-1.0]]}, {"samples": ["x"], "risk": 2.0},
    ],
    ids=lambda body: json.dumps(body)[:40],
)  # fmt: skip
def test_samples_of_wrong_types(client, body):
    assert client.post("/v1/score", json=body).status_code == 422


MANY = {f"a{k}": "" for k in range(1000)}


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (AskRequest, {"question": "x", **MANY}),
        (ScoreRequest, {"samples": ["x"], "columns": MANY}),
        (ScoreRequest, {"samples": ["x"], "logprobs": [["x"] * 1000] * 100}),
        (ScoreRequest, {"samples": ["x"], "answer_logprobs": ["x"] * 1000}),
        (ScoreRequest, {"samples": ["x"] * 1000}),
        (ChatRequest, {**chat(), **MANY}),
        (ChatRequest, {**chat(), "messages": [{"role": "user", "content": "x", **MANY}]}),
    ],
)
def test_of_very_many_faults_one_is_told(form, body):
    """Each takes its time: of a few megabytes of them the server would stand still for seconds."""
    with pytest.raises(ValidationError) as refused:
        form.model_validate(body)
    assert refused.value.error_count() == 1


def test_an_object_of_very_many_fields_is_refused(client):
    reply = client.post("/v1/ask", json={**ASK, **MANY})
    assert (reply.status_code, code(reply)) == (422, "invalid")
    assert reply.json()["error"]["message"] == (
        "the body: it has 1002 fields; at most 64 are taken."
    )


def connection(client):
    address = urlsplit(str(client.base_url))
    return socket.create_connection((address.hostname, address.port), timeout=30)


def request(client, body, path="/v1/ask", **headers):
    """A whole request as bytes."""
    data = json.dumps(body).encode()
    told = {
        "Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": len(data),
        "Authorization": f"Bearer {TOKEN}", **headers,
    }  # fmt: skip
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_that_leaves_takes_its_query_along(guarded, log):
    client, desk, gate = guarded
    gate.open.clear()
    gate.batches.clear()
    with ThreadPoolExecutor(1) as pool, connection(client) as leaving:
        held = pool.submit(client.post, "/v1/ask", json={**ASK, "n": 2, "seed": 77})
        until(lambda: len(gate.batches) == 1)
        leaving.sendall(request(client, {**ASK, "n": 2, "seed": 78}))
        until(lambda: desk._queries.waiting == 1)
        leaving.close()
        until(lambda: f'"status": {LEFT}' in log.getvalue())
        assert desk._queries.waiting == 0
        gate.open.set()
        assert held.result().status_code == 200
    lives(client)
    assert len(gate.batches) == 2  # that of the one who stayed, and the one just now
    assert f'status="{LEFT}"' in client.get("/metrics").text


def test_a_client_that_leaves_in_the_middle_of_its_request(guarded, log):
    client, _, _ = guarded
    with connection(client) as leaving:
        leaving.sendall(request(client, ASK)[:-100])
        time.sleep(0.05)
    until(lambda: '"code": "left"' in log.getvalue())
    lives(client)


def test_a_stream_that_is_cut(guarded, log):
    client, _, _ = guarded
    for _ in range(5):
        with client.stream("POST", "/v1/ask", json={**ASK, "stream": True}) as reply:
            next(reply.iter_lines())
    lives(client)
    assert "server_failed" not in log.getvalue()


def test_a_slow_client_is_not_waited_for(guarded):
    """Nothing at all, half a header, half a body: each has its seconds."""
    client, _, _ = guarded
    with connection(client) as slow:
        assert ended(slow) == b""
    with connection(client) as slow:
        slow.sendall(b"POST /v1/ask HTTP/1.1\r\nHost: 127.0")
        assert ended(slow) == b""
    with connection(client) as slow:
        slow.sendall(request(client, ASK)[:-10])
        told = ended(slow)
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b"the request did not come whole within 0.7 s." in told
    with connection(client) as slow:  # the second request of a connection
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /healthz HT")
        assert ended(slow).count(b"HTTP/1.1 200") == 1
    lives(client)


def ended(stream, seconds=30):
    """All that comes until the server ends the connection; it does within seconds."""
    stream.settimeout(seconds)
    found, start = b"", time.monotonic()
    try:
        while some := stream.recv(65536):
            found += some
    except ConnectionResetError:
        pass
    assert time.monotonic() - start < seconds
    return found


def test_a_reader_that_stands_still_is_left(guarded):
    client, _, _ = guarded
    with connection(client) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        slow.settimeout(5)

        def go_on():
            for _ in range(400):
                slow.sendall(ask)
                time.sleep(0.01)

        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            go_on()
    lives(client)


def test_two_hundred_clients_and_a_short_queue(assistant):
    """Answered or sent away with a time to come again; nothing else, and nothing grows."""
    with served(assistant, limits=Limits(queue=16, batch=8, seconds=30)) as (client, desk):
        bodies = [request(client, {**ASK, "image": noise(k), "n": 2}) for k in range(200)]
        together = threading.Barrier(200)

        def ask(body):
            with connection(client) as own:
                together.wait(20)
                own.sendall(body.replace(b"Host:", b"Connection: close\r\nHost:"))
                return ended(own, 30).decode()

        with ThreadPoolExecutor(200) as pool:
            found = list(pool.map(ask, bodies))
        counts = Counter(reply[9:12] for reply in found)
        assert set(counts) == {"200", "429"}
        assert counts["200"] >= 16
        refused = [reply for reply in found if reply[9:12] == "429"]
        waits = [int(re.search(r"(?i)retry-after: (\d+)", reply)[1]) for reply in refused]
        assert all(1 <= wait <= 60 for wait in waits)
        assert all('"busy"' in reply for reply in refused)
        assert desk._queries.waiting == 0
        lives(client)


def test_requests_under_way_may_hold_so_much_and_no_more(guarded):
    client, _, gate = guarded
    gate.open.clear()
    big = {**ASK, "image": data_url(SHAPE + bytes(1_200_000))}  # what follows a PNG is not read
    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(client.post, "/v1/ask", json={**big, "seed": k}) for k in range(8)]
        until(lambda: sum(one.done() for one in first) >= 4)
        gate.open.set()
        counts = Counter(one.result().status_code for one in first)
    assert set(counts) <= {200, 429}
    assert counts[429] >= 4
    lives(client)


def test_a_request_that_may_come_is_let_in_when_it_is_alone():
    """--max-mb may be more than all requests together have as a rule."""
    with served(None, limits=Limits(body_bytes=20_000, held_bytes=1000)) as (client, _):
        assert client.post("/v1/score", json={"samples": ["a" * 1500]}).status_code == 200
        reply = client.post("/v1/score", json={"samples": ["a" * 30_000]})
        assert (reply.status_code, code(reply)) == (413, "too_large")


def test_an_answer_that_takes_too_long_is_not_waited_for(assistant):
    gate = Gate(assistant)
    with served(gate, limits=Limits(seconds=0.3)) as (client, _):
        gate.open.clear()
        for body in (ASK, {**ASK, "stream": True}):
            reply = client.post("/v1/ask", json=body)
            assert (reply.status_code, code(reply)) == (504, "too_slow")
            assert reply.json()["error"]["message"] == "there was no answer within 0.3 s."
        gate.open.set()
        assert client.get("/healthz").status_code == 200


def test_a_model_that_stands_still_does_not_keep_a_server_from_ending(assistant, monkeypatch):
    """Who waits is told; the thread is left behind."""
    monkeypatch.setattr("fusevlm.serve.desk.ENDING", 0.2)
    gate = Gate(assistant)
    gate.open.clear()
    try:
        with served(gate, limits=Limits(closing_seconds=1)) as (client, _):
            own = connection(client)
            own.sendall(request(client, ASK))
            assert gate.entered.acquire(timeout=20)
            start = time.monotonic()
        assert time.monotonic() - start < 50  # the model would take a minute
        told = ended(own).decode()
        assert told.startswith("HTTP/1.1 503 ")
        assert '"code": "not_ready"' in told
        own.close()
    finally:
        gate.open.set()


def test_a_thousand_wrong_tokens(guarded):
    """None is let in, whatever it has in common with the right one, and none is in the log."""
    client, _, _ = guarded
    rng = np.random.default_rng(5)
    letters = [chr(c) for c in range(33, 127)]
    near = [TOKEN[:k] for k in range(1, len(TOKEN))] + [TOKEN + c for c in "0=\\x"]
    near += [TOKEN[:k] + "~" + TOKEN[k + 1 :] for k in range(len(TOKEN))]
    near += [TOKEN.upper(), TOKEN[::-1], f'"{TOKEN}"', f"Bearer {TOKEN}", TOKEN * 2]
    others = ["".join(rng.choice(letters, rng.integers(1, 60))) for _ in range(1000 - len(near))]
    base = str(client.base_url).rstrip("/")
    url = f"{base}/v1/models"
    with httpx2.Client(trust_env=False) as stranger:
        for wrong in near + others:
            reply = stranger.get(url, headers={"Authorization": f"Bearer {wrong}"})
            assert reply.status_code == 401, wrong
            assert reply.headers["www-authenticate"] == "Bearer"
        for headers in (
            [], [("Authorization", TOKEN)], [("Authorization", f"Basic {TOKEN}")],
            [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")],
            [("X-Token", TOKEN)], [("Cookie", f"token={TOKEN}")],
        ):  # fmt: skip
            assert stranger.get(url, headers=headers).status_code == 401
        assert stranger.get(f"{url}?token={TOKEN}").status_code == 401
        for path in ("v1/ask", "v1/score", "v1/decide", "v1/feedback", "v1/chat/completions"):
            reply = stranger.post(f"{base}/{path}", json=ASK)
            assert reply.status_code == 401
        assert stranger.get(f"{base}/metrics").status_code == 401
        good = stranger.get(url, headers={"Authorization": f"bearer {TOKEN}"})
        assert good.status_code == 200
    lives(client)


def test_tokens_are_compared_whole_and_in_constant_time(guarded, monkeypatch):
    """By the standard library's function for it, on digests: their length tells nothing."""
    from fusevlm.serve import guard

    compared = []

    def compare(one, two):
        compared.append((len(one), len(two)))
        return one == two

    monkeypatch.setattr(guard.hmac, "compare_digest", compare)
    client, _, _ = guarded
    for wrong in ("x", TOKEN[:-1], "y" * 1000):
        client.get("/v1/models", headers={"Authorization": f"Bearer {wrong}"})
    assert compared == [(32, 32)] * 3


def test_what_fails_inside_is_not_shown(assistant, log):
    class Broken(Gate):
        def ask_all(self, queries, **terms):
            raise RuntimeError(f"{SECRET}: {queries[0].question}")

    with served(Broken(assistant), token=TOKEN) as (client, _):
        for body in (ASK, {**ASK, "stream": True}):
            reply = client.post("/v1/ask", json=body)
            assert (reply.status_code, code(reply)) == (500, "server_failed")
            assert SECRET not in reply.text
            assert "Traceback" not in reply.text
            assert ".py" not in reply.text
        reply = client.post("/v1/chat/completions", json=chat())
        assert (reply.status_code, code(reply)) == (500, "server_failed")
        assert client.get("/healthz").status_code == 200
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    failed = [line for line in lines if line["event"] == "failed"]
    assert [line["error"] for line in failed] == ["RuntimeError"] * 3
    assert any("ask_all" in place for place in failed[0]["places"])
    assert SECRET not in log.getvalue()


def test_what_fails_in_the_middle_of_a_stream_is_its_last_event(assistant, log):
    class Broken(Gate):
        def ask_all(self, queries, **terms):
            super().ask_all(queries, **terms)  # those who watch are told
            raise RuntimeError(SECRET)

    with served(Broken(assistant)) as (client, _):
        text = client.post("/v1/ask", json={**ASK, "n": 4, "stream": True}).text
    *before, last = text.strip().split("\n\n")
    assert len(before) == 2
    kind, data = last.split("\n")
    told = json.loads(data.removeprefix("data: "))["error"]
    assert (kind, told["code"]) == ("event: error", "server_failed")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (failed,) = [line for line in lines if line["event"] == "failed"]
    (own,) = [line for line in lines if line.get("code") == "server_failed"]
    assert failed["request"] == own["request"] == told["request_id"]
    assert SECRET not in text + log.getvalue()


def test_the_log_says_what_happened_and_never_what_was_asked(assistant, log, tmp_path):
    question, samples = "is this the very private question?", ["very private sample"]
    with served(assistant, token=TOKEN, feedback=Feedback(tmp_path / "f.jsonl")) as (client, _):
        replies = [client.post("/v1/ask", json={"question": question, "image": CLEAN})]
        name = replies[0].json()["id"]
        replies += [
            client.post("/v1/chat/completions", json=chat(question, stream=True)),
            client.post("/v1/score", json={"samples": samples, "question": question}),
            client.post("/v1/feedback", json={"id": name, "wrong": True}),
            client.post("/v1/ask", json={"question": question, "image": question}),
            client.get(f"/{TOKEN}/{question}?q={question}"),
            client.get("/v1/models", headers={"Authorization": "Bearer another-private-token"}),
        ]
    logging.getLogger("some.library").warning("odd words in %r", question)
    told = log.getvalue()
    for private in (question, "private", samples[0], CLEAN[30:80], TOKEN, name):
        assert private not in told
    lines = [json.loads(line) for line in told.splitlines()]
    by_id = {line["request"]: line for line in lines if line["event"] == "request"}
    own = [by_id[reply.headers["x-request-id"]] for reply in replies]
    assert [line["status"] for line in own] == [200, 200, 200, 200, 422, 404, 401]
    assert own[0]["decision"] in ("answer", "abstain")
    assert own[5]["path"] == "other"
    assert lines[-1]["template"] == "odd words in %r"


def test_the_log_of_an_exception_nobody_looked_at(log):
    """asyncio puts its words into the line itself."""

    async def broken():
        raise RuntimeError(SECRET)

    async def lost():
        asyncio.ensure_future(broken())  # noqa: RUF006
        await asyncio.sleep(0)

    asyncio.run(lost())
    gc.collect()
    (line,) = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (line["template"], line["error"]) == (
        "Task exception was never retrieved",
        "RuntimeError",
    )
    assert SECRET not in log.getvalue()


def test_no_other_site_may_ask(client):
    """CORS is off, a form cannot be sent as JSON, and another host name is not answered."""
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    reply = client.options("/v1/ask", headers=headers)
    assert reply.status_code == 405
    reply = client.post("/v1/ask", json={**ASK, "n": 2}, headers={"Origin": "https://evil.example"})
    assert not [name for name in reply.headers if name.startswith("access-control")]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        reply = client.post("/v1/ask", content="{}", headers={"Content-Type": kind})
        assert (reply.status_code, code(reply)) == (415, "not_json")
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        assert client.get("/healthz", headers={"Host": host}).status_code in (400, 421)
    for host in HERE:
        assert client.get("/healthz", headers={"Host": f"{host}:8000"}).status_code == 200


def test_nobody_is_sent_elsewhere(client):
    for path in ("/v1/models/", "//v1/models", "/healthz/", "/v1//ask", "/%2e%2e/etc/passwd"):
        reply = client.get(path, follow_redirects=False)
        assert (reply.status_code, code(reply)) == (404, "nothing_here")
        assert "location" not in reply.headers


def test_a_request_that_is_no_http(client):
    with connection(client) as stream:
        stream.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        assert ended(stream).startswith(b"HTTP/1.1 400 ")
    with connection(client) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000)
        assert b"400" in ended(stream)[:20]
    assert client.get("/healthz").status_code == 200


def test_a_picture_in_every_form_that_is_one(client):
    image = Image.open(io.BytesIO(SHAPE)).convert("RGB")
    for kind, mode in (("PNG", "P"), ("JPEG", "CMYK"), ("GIF", "L"), ("WEBP", "RGBA"),
                       ("BMP", "RGB"), ("TIFF", "L")):  # fmt: skip
        buffer = io.BytesIO()
        image.convert(mode).save(buffer, kind)
        url = data_url(buffer.getvalue(), kind.lower())
        assert client.post("/v1/ask", json={**ASK, "image": url, "n": 2}).status_code == 200


def test_threads_do_not_pile_up(guarded):
    client, _, _ = guarded
    lives(client)
    before = threading.active_count()
    for _ in range(10):
        client.post("/v1/ask", json={**ASK, "n": 2})
    assert threading.active_count() <= before + 2
