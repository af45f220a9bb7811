"""What stands before every request: name, token, type, size, time; and notes what came of it.

A request is read whole before anything is made of it, within its limits, so that no other part
meets half of one. A client that leaves takes its query out of the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from fusevlm.errors import InputError
from fusevlm.serve.desk import Desk
from fusevlm.serve.faults import LEFT, Fault, busy
from fusevlm.serve.logs import fault_of, note

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/healthz", "/readyz", "/openapi.json")  # what needs no token
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
FACTS, REQUEST = "fusevlm.facts", "fusevlm.request"  # keys of a scope: what is noted, and its id
LEAST_TOKEN = 16  # characters
HERE = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Left(Exception):
    """The client went before it was answered."""


def checked_token(token: str | None) -> str | None:
    """A token that cannot be guessed, or none."""
    if not token:
        return None
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"the token has {len(token)} characters, or some that no header can hold; expected at "
            f"least {LEAST_TOKEN} letters, digits or marks, such as those of: openssl rand -hex 24"
        )
    return token


class Guard:
    """An ASGI application around another; ``posted`` are the paths that take a body."""

    def __init__(
        self,
        app: App,
        *,
        desk: Desk,
        posted: Collection[str],
        token: str | None = None,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self._app, self._desk, self._hosts, self._posted = app, desk, hosts, posted
        self._token = None if token is None else _digest(token.encode())  # the token is not kept
        self._held = 0  # bytes of requests under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, name = time.monotonic(), secrets.token_hex(8)
        facts: dict[str, Any] = {}
        scope[FACTS], scope[REQUEST] = facts, name
        answer = _Answer(send, name)
        held = [0]
        try:
            await self._handle(scope, receive, answer, held)
        except Fault as fault:
            facts["code"] = fault.code
            await answer.fault(fault)
        except Left:
            facts["code"] = "left"
        except asyncio.CancelledError:  # the server ends, and waits no longer
            facts["code"] = "not_ready"
            await answer.fault(Fault("not_ready", words="the server is ending."))
        except Exception as error:  # nothing of it may reach the client
            facts["code"] = "server_failed"
            note("failed", logging.ERROR, request=name, **fault_of(error))
            await answer.fault(Fault("server_failed"))
        finally:
            self._held -= held[0]
            self._note(scope, name, answer, time.monotonic() - start)

    def _note(self, scope: Scope, name: str, answer: _Answer, seconds: float) -> None:
        """Count a request and write its line."""
        known = scope["path"] if scope["path"] in self._posted else "other"
        path = str(getattr(scope.get("route"), "path", known))
        method = scope["method"] if scope["method"] in METHODS else "other"
        status = answer.status or LEFT
        metrics, facts = self._desk.metrics, scope[FACTS]
        metrics.count("fusevlm_requests_total", path=path, status=str(status))
        metrics.observe("fusevlm_request_seconds", seconds, path=path)
        if "code" in facts:
            metrics.count("fusevlm_faults_total", code=facts["code"])
        note(
            "request", request=name, method=method, path=path, status=status,
            seconds=round(seconds, 4), **facts,
        )  # fmt: skip

    async def _handle(
        self, scope: Scope, receive: Receive, answer: _Answer, held: list[int]
    ) -> None:
        headers = [(key.decode("latin-1"), value) for key, value in scope["headers"]]
        self._refuse_host(headers)
        self._refuse_token(scope["path"], headers)
        body = b""
        if scope["method"] == "POST" and scope["path"] in self._posted:
            kind = _only(headers, "content-type").split(b";")[0].strip().lower()
            if kind != b"application/json":
                raise Fault("not_json")
            body = await self._read(headers, receive, held)
        await self._run(scope, receive, answer, body)

    def _refuse_host(self, headers: Sequence[tuple[str, bytes]]) -> None:
        """Another name in a browser's address bar may lead here (DNS rebinding)."""
        if self._hosts is None:
            return
        host = _only(headers, "host").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts:
            raise Fault("other_host")

    def _refuse_token(self, path: str, headers: Sequence[tuple[str, bytes]]) -> None:
        if self._token is None or path in OPEN:
            return
        scheme, _, given = _only(headers, "authorization").partition(b" ")
        # digests are of one length, and compared in a time that does not tell where they differ
        same = hmac.compare_digest(_digest(given.strip()), self._token)
        if not (same and scheme.lower() == b"bearer"):
            raise Fault("wrong_token", {"WWW-Authenticate": "Bearer"})

    async def _read(
        self, headers: Sequence[tuple[str, bytes]], receive: Receive, held: list[int]
    ) -> bytes:
        """The whole body, within its limits."""
        limits = self._desk.limits
        too_large = Fault("too_large", mb=limits.body_bytes / 1e6)
        told = _only(headers, "content-length")
        if told.isdigit() and int(told) > limits.body_bytes:
            raise too_large
        found = bytearray()
        until = time.monotonic() + limits.body_seconds
        while True:
            try:
                message = await asyncio.wait_for(receive(), until - time.monotonic())
            except TimeoutError as error:
                close = {"Connection": "close"}
                raise Fault("slow_request", close, seconds=limits.body_seconds) from error
            if message["type"] == "http.disconnect":
                raise Left
            some = message.get("body", b"")
            self._held += len(some)
            held[0] += len(some)
            if held[0] > limits.body_bytes:
                raise too_large
            if self._held > max(limits.held_bytes, limits.body_bytes):  # one alone is let in
                raise busy(1)
            found += some
            if not message.get("more_body", False):
                return bytes(found)

    async def _run(self, scope: Scope, receive: Receive, answer: _Answer, body: bytes) -> None:
        """The application, until it is done or its client has gone."""
        gone = asyncio.Event()
        replay: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            if replay:
                return replay.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        work = asyncio.ensure_future(self._app(scope, again, answer.send))
        watch = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                gone.set()
                raise Left
            work.result()
        finally:
            for task in (work, watch):
                if not task.done():
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Answer:
    """What is sent to a client, with the headers that all replies have."""

    def __init__(self, send: Send, name: str) -> None:
        self._send, self._name = send, name
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            known = {key.lower() for key, _ in message.get("headers", ())}
            more = {**HEADERS, "X-Request-Id": self._name}
            added = [
                (key.encode(), value.encode())
                for key, value in more.items()
                if key.lower().encode() not in known
            ]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await self._send(message)

    async def fault(self, fault: Fault) -> None:
        """A fault as JSON, unless something was sent already."""
        if self.status:
            return
        body = json.dumps(fault.body(self._name)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *((key.encode(), value.encode()) for key, value in fault.headers.items()),
        ]
        start = {"type": "http.response.start", "status": fault.status, "headers": headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _only(headers: Sequence[tuple[str, bytes]], name: str) -> bytes:
    """The value of a header that must be there once; nothing where it is there twice."""
    found = [value for key, value in headers if key == name]
    return found[0] if len(found) == 1 else b""
