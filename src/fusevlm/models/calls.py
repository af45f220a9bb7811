"""Calls of a JSON service over HTTP: retries, rate, time-outs, within a budget.

Connections are kept and proxies of the environment used (``HTTPS_PROXY``), but for this machine.
The key is read from the environment at every call: no object holds it, and what a server says is
cleared of it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import ssl
import time
import weakref
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from fusevlm import checks
from fusevlm.errors import FuseError, InputError
from fusevlm.models.budget import Meter, Pace, Promise, Shared
from fusevlm.settings import ServerConfig

logger = logging.getLogger(__name__)

KEYS = ("FUSEVLM_API_KEY", "OPENAI_API_KEY")  # environment variables; the first that is set counts
LIKE_A_KEY = re.compile(r"\b(sk|pk|key)-[\w*.…-]{4,}|\bBearer\s+\S+")
PASSING = (408, 409, 425, 429)  # and all of 500 and above: may go well the next time
NEVER = re.compile(r"\bnot support|unsupported|mmproj", re.IGNORECASE)  # said with a 500
QUOTA = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.IGNORECASE)
SHOWN = 300  # characters of a server's own words
HERE = ("localhost", "127.0.0.1", "::1")
MOST_BYTES = 64_000_000  # of an answer


class CallError(FuseError):
    """A call that brought no answer; the message says why.

    status   the HTTP status; 0 where there was none
    passing  the same call may go well another time
    wait     seconds the server asks to wait
    """

    def __init__(
        self, text: str, *, status: int = 0, passing: bool = False, wait: float | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.passing, self.wait = status, passing, wait


class Service:
    """A JSON service at an address."""

    def __init__(
        self, base: str, limits: ServerConfig | None = None, shared: Shared | None = None
    ) -> None:
        http = checks.extra("httpx2", "a model behind a server", "api")
        self.base = _address(base)
        self.limits = limits or ServerConfig()
        own = shared or Shared(Meter(self.limits), Pace(self.limits.per_minute))
        self.meter: Meter = own.meter
        self.pace: Pace = own.pace
        pool = http.Limits(max_connections=None, max_keepalive_connections=self.limits.concurrency)
        near = urlsplit(self.base).hostname in HERE
        # a redirect is told, not followed: the key is meant for the address that was given
        self._client = http.Client(limits=pool, trust_env=not near, follow_redirects=False)
        weakref.finalize(self, self._client.close)  # kept connections go with the service
        self._http = http
        self._reached = False  # has it ever answered
        self.down = ""  # while the service is down: what it met last; no retries then

    def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        promise: Promise,
        stop: Event | None = None,
    ) -> dict[str, Any]:
        """The answer to a POST, after as many retries as it takes; CallError when there is none.

        A server that was never reached is not waited for: it is not there.
        """
        halt = stop or Event()
        tried = 0
        while True:
            self._wait_turn(halt)
            self.meter.send(promise)
            tried += 1
            try:
                found = self.once(path, body)
            except CallError as error:
                self._reached = self._reached or error.status > 0
                if not error.passing:
                    raise
                if tried > self.limits.retries or self.down or not self._reached:
                    self.down = str(error)
                    raise _after(error, tried) from error
                self._pause(error, tried, halt)
            else:
                self.down, self._reached = "", True
                return found

    def once(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that one call returns: a POST of ``body``, or a GET."""
        secret = find_key()
        headers = {"Accept": "application/json", "User-Agent": "fusevlm"}
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret[1]}"
        given: dict[str, Any] = {} if body is None else {"json": dict(body)}
        try:
            with self._client.stream(
                "GET" if body is None else "POST",
                self.base + path,
                headers=headers,
                timeout=self.limits.timeout,
                **given,
            ) as answer:
                kind = answer.headers.get("content-type", "")
                if answer.status_code < 300 and kind.startswith("text/event-stream"):
                    raise CallError(
                        "the server sent a stream (text/event-stream) though none was asked for. "
                        "Switch streaming off in the server or the proxy before it."
                    )
                text = _body(answer)
        except (self._http.HTTPError, self._http.InvalidURL) as error:
            raise _broken(error, self._http, self.base, self.limits.timeout) from None
        if answer.status_code >= 300:
            raise _refusal(answer.status_code, answer.headers, text)
        return _parsed(text)

    def _wait_turn(self, stop: Event) -> None:
        """Hold the call back until its turn: calls per minute, and what a server asked to wait."""
        _sleep(self.pace.turn(), stop)

    def _pause(self, error: CallError, tried: int, stop: Event) -> None:
        """Wait before a retry: as long as the server says, or twice as long each time; jittered."""
        grown = self.limits.backoff * 2.0 ** (tried - 1)
        seconds = min(grown, self.limits.max_wait) * random.uniform(0.5, 1.0)
        if error.wait is not None:
            if error.wait > self.limits.max_wait:
                raise CallError(
                    f"{error} It asks to wait {error.wait:g} s, longer than max_wait = "
                    f"{self.limits.max_wait:g}. Run again later.",
                    status=error.status,
                    passing=True,
                )
            seconds = error.wait + random.uniform(0.0, 0.1) * self.limits.backoff
            self.pace.hold(error.wait)  # nobody else calls before then either
        logger.info("call %d failed (%s): once more in %.1f s", tried, error, seconds)
        _sleep(seconds, stop)


def find_key() -> tuple[str, str] | None:
    """The environment variable that holds a key, and the key; None without one."""
    for name in KEYS:
        value = os.environ.get(name, "").strip()
        if value:
            if not re.fullmatch(r"[\x21-\x7e]+", value):
                raise InputError(
                    f"{name} holds characters that no key has (spaces, line breaks or letters "
                    f"beyond ASCII). Set it again."
                )
            return name, value
    return None


def cleared(text: str) -> str:
    """``text`` in one line without any key in it, and not longer than a message should be."""
    for name in KEYS:
        value = os.environ.get(name, "").strip()
        text = text.replace(value, "[key]") if value else text
    line = " ".join(LIKE_A_KEY.sub("[key]", text).split())
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"


def _address(base: str) -> str:
    """``base`` without a slash at its end; one that holds a secret is refused, unseen."""
    try:
        parts = urlsplit(base)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        good = False
    if not good or re.search(r"\s", base):
        raise InputError(
            "the address of the server cannot be read; expected one such as "
            "http://localhost:8000/v1."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(
            f"the address of the server holds a user, a password or a query; these would be "
            f"written down with the run. Put the key into {KEYS[0]} and give the bare address."
        )
    if parts.scheme == "http" and parts.hostname not in HERE and find_key() is not None:
        logger.warning("the key goes to %s unencrypted: use https.", parts.hostname)
    return base.rstrip("/")


def _sleep(seconds: float, stop: Event) -> None:
    if stop.wait(seconds) if seconds > 0 else stop.is_set():
        raise CallError("the run was stopped.", passing=True)


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        start = cleared(text[:80]) or "nothing"
        raise CallError(
            f"the server's answer is not JSON ({error}); it begins with: {start}. "
            f"Is this the address of an OpenAI-compatible server?"
        ) from None
    if not isinstance(found, dict):
        raise CallError(f"the server's answer is a JSON {type(found).__name__}, not an object.")
    if found.get("error"):
        raise CallError(f"the server refused: {_words(found)}")
    return found


def _body(answer: Any) -> str:
    """The whole answer as text; one that does not end is broken off."""
    found = bytearray()
    for block in answer.iter_bytes():
        found += block
        if len(found) > MOST_BYTES:
            raise CallError(f"the server's answer is longer than {MOST_BYTES // 10**6} MB.")
    return found.decode("utf-8", "replace")


def _refusal(status: int, headers: Mapping[str, str], body: str) -> CallError:
    """An HTTP status as an error that says what to do."""
    try:
        words = _words(json.loads(body))
    except (ValueError, RecursionError):
        words = cleared(body)
    said = f"HTTP {status}" + (f" ({words})" if words else "")
    if status in (401, 403):
        secret = find_key()
        held = f"the key in {secret[0]} is not accepted" if secret else "there is no key"
        return CallError(f"{said}: {held}. Set {' or '.join(KEYS)} to a valid one.", status=status)
    if status == 404:
        return CallError(
            f"{said}: the model or the address is not there. Addresses usually end in /v1.",
            status=status,
        )
    if status == 429 and QUOTA.search(body):
        return CallError(f"{said}: the account's quota is used up. Raise it.", status=status)
    if 300 <= status < 400:
        return CallError(f"{said}: the server sends elsewhere. Give that address.", status=status)
    if status in PASSING or (status >= 500 and not NEVER.search(body)):
        what = "too many calls: set per_minute" if status == 429 else "the server failed"
        wait = _retry_after(headers.get("retry-after"))
        return CallError(f"{said}: {what}.", status=status, passing=True, wait=wait)
    return CallError(f"{said}: the server refused the call.", status=status)


def _broken(error: Exception, http: Any, base: str, timeout: float) -> CallError:
    """A call that ended without a whole answer."""
    if isinstance(error, http.TimeoutException):
        return CallError(f"no answer within timeout = {timeout:g} s.", passing=True)
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CallError(f"the certificate of {base} is not trusted: {cause.verify_message}.")
    if isinstance(error, http.RemoteProtocolError) and "body" in str(error):
        return CallError("the server's answer broke off in the middle.", passing=True)
    if isinstance(error, http.ConnectError) and any(
        isinstance(cause, ConnectionRefusedError) for cause in causes
    ):
        return CallError(
            f"nothing listens at {base}. Start the server, or correct the address.", passing=True
        )
    said = cleared(str(error)) or type(error).__name__
    return CallError(f"the connection to {base} failed: {said}.", passing=True)


def _causes(error: BaseException) -> list[BaseException]:
    """What led to an error, from it on back."""
    found: list[BaseException] = [error]
    while (before := found[-1].__cause__ or found[-1].__context__) and before not in found:
        found.append(before)
    return found


def _after(error: CallError, tried: int) -> CallError:
    if tried == 1:
        return error
    return CallError(f"{error} Tried {tried} times.", status=error.status, passing=True)


def _words(body: Any) -> str:
    """What a server says is wrong, in any of the usual places."""
    found = body
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return cleared(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))


def _retry_after(value: str | None) -> float | None:
    """Seconds from now: a number of them, or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
