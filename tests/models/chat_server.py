"""A chat-completions server on the loopback: a tiny model of two words and EOS, and its faults.

The model is a table of hashes: what it says depends on the messages, their pictures, the
temperature and the seed alone. ``skills`` says which parts of the protocol are honoured, refused
or ignored; ``fault`` names what the next ``times`` calls meet with.
"""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from tests.models.toy import random

WORDS = [" red", " blue", " green", " café", " two", " 象"]
LENGTH, EOS = 2, -0.25


def logits(messages, step):
    """Of the words at a step; a picture is part of the messages."""
    return 2.0 * random(json.dumps(messages), step).standard_normal(len(WORDS))


def logprobs(messages, step):
    row = logits(messages, step)
    return row - np.logaddexp.reduce(row)


class Chat(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.skills = {"n": "yes", "logprobs": "yes", "top_logprobs": "yes", "seed": "yes",
                       "top_k": "yes", "images": "yes", "max_tokens": "yes"}  # fmt: skip
        self.scale = False  # log-probabilities after temperature
        self.fault, self.times, self.headers = None, None, {}
        self.skip = 0  # calls before the fault
        self.frozen = False  # heeds no temperature
        self.lock, self.bodies, self.keys, self.starts = threading.Lock(), [], [], []
        self.now, self.most = 0, 0
        self.over = threading.Event()
        self.pause = 0.0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def break_down(self, fault, times=None, **headers):
        self.fault, self.times, self.headers = fault, times, headers
        self.skip = 0
        self.bodies.clear()
        self.starts.clear()

    def next_fault(self):
        with self.lock:
            if self.fault is None or self.times == 0:
                return None
            if self.skip > 0:
                self.skip -= 1
                return None
            self.times = None if self.times is None else self.times - 1
            return self.fault

    def handle_error(self, request, client_address):
        """A client that hung up is what some tests are about."""


@contextmanager
def serving():
    server = Chat()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send(200, {"data": [{"id": "toy"}, {"id": "other"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.keys.append(self.headers.get("Authorization"))
            server.starts.append(time.monotonic())
            server.now += 1
            server.most = max(server.most, server.now)
        server.over.wait(server.pause)
        with server.lock:
            server.now -= 1
        fault = server.next_fault()
        if self.path != "/v1/chat/completions" or body["model"] != "toy":
            self.refuse(404, "The model does not exist.")
        elif fault in FAULTS:
            FAULTS[fault](self, body)
        elif (what := self.lacking(body)) is not None:
            self.refuse(400, what)
        else:
            self.send(200, reply(server, body))

    def lacking(self, body):
        """What the server refuses in the call."""
        skills = self.server.skills
        for name in ("n", "logprobs", "top_logprobs", "seed", "top_k", "max_tokens"):
            if name in body and skills[name] == "no":
                more = " Use 'max_completion_tokens'." if name == "max_tokens" else ""
                return f"{name} is not a parameter here.{more}"
        shown = any(isinstance(turn["content"], list) for turn in body["messages"])
        return "This is not a multimodal model." if shown and skills["images"] == "no" else None

    def refuse(self, status, text):
        self.send(status, {"error": {"message": text}}, self.server.headers)

    def send(self, status, payload, headers=(), kind="application/json", cut=0):
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in dict(headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data[: len(data) - cut])


def entry(server, body, token, value, others):
    """What is said of one token; ``others`` are all log-probabilities.

    As vLLM has it: a token that is none of the best stands in the place of the last of them.
    """
    found = {"token": token, "logprob": value, "bytes": list(token.encode())}
    if server.skills["top_logprobs"] == "yes":
        best = sorted(others)[-body.get("top_logprobs", 0) :]
        best = best if value in best else [value, *best[1:]]
        found["top_logprobs"] = [{"token": "?", "logprob": one} for one in best]
    return found


def choice(server, body, number):
    heat, said, listed = 0.0 if server.frozen else body["temperature"], "", []
    for step in range(LENGTH):
        row = logits(body["messages"], step)
        key = body.get("seed", str(len(server.bodies)))
        noise = random(key, number, step).gumbel(size=len(WORDS))
        k = int(np.argmax(row + heat * noise))
        shown = row / heat if server.scale and heat else row
        values = shown - np.logaddexp.reduce(shown)
        said += WORDS[k]
        listed.append(entry(server, body, WORDS[k], values[k], values))
    listed.append(entry(server, body, "</s>", EOS, [EOS, np.log1p(-np.exp(EOS))]))
    found = {"index": number, "message": {"role": "assistant", "content": said},
             "finish_reason": "stop"}  # fmt: skip
    if body.get("logprobs") and server.skills["logprobs"] == "yes":
        found["logprobs"] = {"content": listed}
    return found


def reply(server, body):
    n = body.get("n", 1) if server.skills["n"] == "yes" else 1
    return {
        "model": "toy-1", "system_fingerprint": "fp_7", "object": "chat.completion",
        "choices": [choice(server, body, k) for k in range(n)],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3 * n, "total_tokens": 10 + 3 * n},
    }  # fmt: skip


def changed(change):
    """A reply of which every choice is changed."""

    def fault(handler, body):
        found = reply(handler.server, body)
        for one in found["choices"]:
            change(one)
        handler.send(200, found)

    return fault


def status(number, text=""):
    return lambda handler, body: handler.refuse(number, text)


def silence(handler, body):
    handler.server.over.wait(30)


def hang_up(handler, body):
    handler.connection.close()


def half(handler, body):
    handler.send(200, reply(handler.server, body), cut=40)


def fewer(handler, body):
    handler.send(200, reply(handler.server, {**body, "n": 1}))


def echo(handler, body):
    """A server that repeats what it was sent."""
    handler.refuse(401, f"Incorrect API key provided: {handler.headers['Authorization']}")


def stream(handler, body):
    handler.send(200, b'data: {"choices": []}\n\ndata: [DONE]\n\n', kind="text/event-stream")


def emoji(one):
    """A character divided between two tokens, and half of one at the end."""
    one["message"]["content"] = " \N{GRINNING FACE}\ud83d"
    first, second = one["logprobs"]["content"][:2]
    raw = list(" \N{GRINNING FACE}".encode())
    first |= {"token": "\ufffd", "bytes": raw[:3]}
    second |= {"token": "\ufffd", "bytes": raw[3:]}


FAULTS = {
    "401": status(401, "no such key"),
    "403": status(403, "not for you"),
    "echo": echo,
    "404": status(404, "gone"),
    "429": status(429, "slow down"),
    "quota": status(429, "You exceeded your current quota (insufficient_quota)."),
    "500": status(500, "oops"),
    "503": status(503, "Loading model"),
    "302": status(302, "elsewhere"),
    "projector": status(500, "image input is not supported - hint: provide the mmproj"),
    "picture": status(400, "cannot decode image"),
    "too long": status(400, "the context has 10 tokens"),
    "silence": silence,
    "hang up": hang_up,
    "half": half,
    "not json": lambda handler, body: handler.send(200, b"<html>busy</html>", kind="text/html"),
    "list": lambda handler, body: handler.send(200, []),
    "error inside": lambda handler, body: handler.send(200, {"error": {"message": "upstream"}}),
    "no choices": lambda handler, body: handler.send(200, {"choices": []}),
    "no message": lambda handler, body: handler.send(200, {"choices": [{"text": "red"}]}),
    "number": changed(lambda one: one["message"].update(content=7)),
    "stream": stream,
    "fewer": fewer,
    "no logprobs": changed(lambda one: one.update(logprobs=None)),
    "fewer logprobs": changed(lambda one: one["logprobs"]["content"].pop(0)),
    "more logprobs": changed(
        lambda one: one["logprobs"].update(content=one["logprobs"]["content"] * 2)
    ),
    "null logprob": changed(lambda one: one["logprobs"]["content"][0].update(logprob=None)),
    "positive logprob": changed(lambda one: one["logprobs"]["content"][0].update(logprob=0.5)),
    "one alternative": changed(
        lambda one: one["logprobs"]["content"][0].update(top_logprobs=[{"logprob": -1.0}])
    ),
    "filtered": changed(
        lambda one: one.update(finish_reason="content_filter", message={"content": ""})
    ),
    "refused": changed(lambda one: one["message"].update(content=None, refusal="I can't say.")),
    "empty": changed(
        lambda one: (one["message"].update(content=""),
                     one["logprobs"].update(content=one["logprobs"]["content"][-1:]))
    ),
    "no words": changed(lambda one: one.update(logprobs=None, message={"content": ""})),
    "thinking": changed(lambda one: one.update(finish_reason="length", message={"content": None})),
    "emoji": changed(emoji),
    "pieces": changed(
        lambda one: one["message"].update(
            content=[{"type": "text", "text": one["message"]["content"]}]
        )
    ),
    "no usage": lambda handler, body: handler.send(
        200, {k: v for k, v in reply(handler.server, body).items() if k != "usage"}
    ),
}  # fmt: skip
