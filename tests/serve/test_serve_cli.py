"""``fusevlm serve`` as people start and end it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx2
import pytest
from tests.serve.live import ASK, chat, noise

from fusevlm.cli import main
from fusevlm.cli.serve import TOKEN


@contextmanager
def started(*words, **env):
    """(process, client, lines of its log) of the command itself."""
    child = subprocess.Popen(
        [sys.executable, "-m", "fusevlm.cli", "serve", "--port", "0", *words],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip
    lines = []
    try:
        address = re.search(r"http://\S+", child.stderr.readline())
        assert address is not None, child.stderr.read()
        reader = threading.Thread(target=lambda: lines.extend(child.stderr), daemon=True)
        reader.start()
        with httpx2.Client(base_url=address[0], timeout=60, trust_env=False) as client:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    client.get("/healthz")
                    break
                except httpx2.ConnectError:
                    time.sleep(0.05)
            yield child, client, lines
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        child.stdout.close()
        reader.join(10)
        child.stderr.close()


@pytest.mark.slow
def test_a_request_to_end_lets_those_under_way_finish():
    """SIGTERM: no new ones, the last answers go out, exit code 0, and the log is JSON lines."""
    token = "a-token-of-some-length"
    with started("--name", "shapes", "--risk", "0.1", **{TOKEN: token}) as (child, client, lines):
        client.headers["Authorization"] = f"Bearer {token}"
        found = client.post("/v1/chat/completions", json={**chat(), "model": "shapes"}).json()
        assert found["fusevlm"]["risk"] == 0.1
        assert client.get("/v1/models", headers={"Authorization": ""}).status_code == 401
        replies = []

        def ask(k):
            replies.append(client.post("/v1/ask", json={**ASK, "image": noise(k)}))

        asking = [threading.Thread(target=ask, args=(k,)) for k in range(24)]
        for one in asking:
            one.start()
        deadline = time.monotonic() + 30
        while len(replies) < 3 and time.monotonic() < deadline:
            time.sleep(0.002)
        child.send_signal(signal.SIGTERM)
        for one in asking:
            one.join(60)
        assert child.wait(60) == 0
        assert [reply.status_code for reply in replies] == [200] * 24
    told = [json.loads(line) for line in lines]
    assert told[0]["event"] == "begun"
    assert told[-1]["event"] == "ended"
    assert token not in "".join(lines)


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--host", "0.0.0.0"], "", "other machines can reach 0.0.0.0, and there is no token"),
        ([], "short", "the token has 5 characters"),
        ([], "a token with spaces in it", "some that no header can hold"),
        (["--model", "none"], "", "--model none serves a fit"),
        (["--model", "no-such-folder"], "", "no-such-folder is no run folder"),
        (["--risk", "2"], "", "risk is 2.0; expected a number above 0 and below 1"),
        (["--queue", "0"], "", "queue is 0; expected a whole number of at least 1"),
        (["--feedback", "told.txt"], "", "expected a file that ends in .jsonl"),
        (["--fit", "no-such-fit"], "", "no-such-fit"),
        (["--host", "no.such.host.invalid", "--no-token"], "", "cannot listen at"),
    ],
)
def test_what_cannot_be_served_is_said_at_once(words, env, said, monkeypatch, capsys):
    monkeypatch.setenv(TOKEN, env)
    assert main(["serve", "--port", "0", *words]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_a_port_that_is_taken(monkeypatch, capsys):
    monkeypatch.delenv(TOKEN, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert f"cannot listen at 127.0.0.1, port {port}" in capsys.readouterr().err
