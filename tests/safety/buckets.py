"""Moto's server on loopback, in a process of its own: buckets that other processes reach too."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import Request, urlopen

SECONDS = 60
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip


@dataclass(frozen=True)
class Moto:
    """A server with one bucket."""

    port: int
    bucket: str = "parts"

    def address(self, where="", bucket=None):
        options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{self.port}"
        return f"s3://{bucket or self.bucket}/{where}?{options}"

    def forbid(self):
        """From now on only those who were given a right may do something: nobody."""
        self._call("POST", "/moto-api/reset-auth", b"0")

    def _call(self, method, path, body=b""):
        request = Request(f"http://127.0.0.1:{self.port}{path}", data=body, method=method)
        request.add_header("Content-Type", "text/plain")
        with urlopen(request, timeout=10) as answer:
            return answer.read()


def _free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


@contextmanager
def serving(log):
    """A server that ends with the block."""
    moto = Moto(_free_port())
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(moto.port)],
            stdout=stream,
            stderr=stream,
            env={**os.environ, **KEYS},
        )
    try:
        end = time.monotonic() + SECONDS
        while True:
            try:
                moto._call("PUT", f"/{moto.bucket}")
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
        yield moto
    finally:
        process.terminate()
        process.wait(SECONDS)
