"""The server's connections: those that stand still are ended, and a request to end is heeded.

uvicorn waits for ever for the rest of a header, for a client that reads nothing, and for the rest
of a body that was refused already. Each gets some seconds here.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fusevlm.errors import InputError
from fusevlm.serve.limits import Limits

BACKLOG = 2048  # connections that wait to be taken


def protocol_of(seconds: float) -> type[H11Protocol]:
    """Connections that may stand still for so many seconds."""

    class Patient(H11Protocol):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self._timers: dict[str, asyncio.TimerHandle] = {}

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for("header")

        def connection_lost(self, exc: Exception | None) -> None:
            for name in list(self._timers):
                self._stop(name)
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._wait_for("header")  # the beginning of the next request
            elif self.conn.their_state is not h11.IDLE:
                self._stop("header")
            if self.conn.their_state is not h11.SEND_BODY:
                self._stop("rest")

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.SEND_BODY:
                self._wait_for("rest")  # of a body that nobody reads any more

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait_for("reader")

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop("reader")

        def _wait_for(self, name: str) -> None:
            if name not in self._timers:
                self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

        def _stop(self, name: str) -> None:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()

    return Patient


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; port 0 is a free one."""
    with ExitStack() as unless_listening:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            # asyncio sends at once (TCP_NODELAY) only where the protocol is named
            found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            unless_listening.callback(found.close)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            found.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"cannot listen at {host}, port {port}: {error}. Choose another with --host and "
                f"--port."
            ) from error
        unless_listening.pop_all()
    return found


def server_of(app: Any, limits: Limits) -> uvicorn.Server:
    """A server of an application; its log is ours, and nobody's headers are believed."""
    config = uvicorn.Config(
        app,
        http=protocol_of(limits.idle_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=limits.closing_seconds,
    )
    return uvicorn.Server(config)


def run(app: Any, listening: socket.socket, limits: Limits) -> None:
    """Serve until a request to end (SIGTERM, Ctrl-C) comes; what is under way is finished."""
    server = server_of(app, limits)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # raised once more by uvicorn when all is done
        if not server.should_exit:
            raise
