"""Calls of a JSON service over HTTP: retries, rate, time-outs, and a budget that is never exceeded.

Only the standard library is used, with its proxies (``HTTPS_PROXY``). The key is read from the
environment at every call: no object holds it, and what a server says is cleared of it.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from threading import Event, Lock
from typing import Annotated, Any
from urllib.parse import urlsplit

from fusevlm import checks
from fusevlm.checks import POSITIVE, Number, Whole
from fusevlm.errors import FuseError, InputError

logger = logging.getLogger(__name__)

KEYS = ("FUSEVLM_API_KEY", "OPENAI_API_KEY")  # environment variables; the first that is set counts
LIKE_A_KEY = re.compile(r"\b(sk|pk|key)-[\w*.…-]{4,}|\bBearer\s+\S+")
PASSING = (408, 409, 425, 429)  # and all of 500 and above: may go well the next time
NEVER = re.compile(r"\bnot support|unsupported|mmproj", re.IGNORECASE)  # said with a 500
QUOTA = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.IGNORECASE)
SHOWN = 300  # characters of a server's own words
HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Limits:
    """How patiently, how fast and how much a service is called."""

    timeout: Annotated[float, POSITIVE] = 120.0  # seconds without a byte
    retries: Annotated[int, Whole(0)] = 5  # of a call that failed for a passing reason
    backoff: Annotated[float, POSITIVE] = 1.0  # seconds before the first retry; then twice as many
    max_wait: Annotated[float, Number(0.0)] = 60.0  # seconds before one retry
    per_minute: Annotated[float | None, POSITIVE] = None  # calls begun
    concurrency: Annotated[int, Whole(1)] = 8  # calls at a time
    max_calls: Annotated[int | None, Whole(1)] = None  # retries and the probe count
    max_tokens: Annotated[int | None, Whole(1)] = None  # of prompts and answers

    def __post_init__(self) -> None:
        checks.options(self)


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


@dataclass(eq=False)
class Promise:
    """What a query may still use of the budget, kept for it until it is done."""

    calls: int
    tokens: int


@dataclass(eq=False)
class Meter:
    """Calls and tokens used, and those promised to queries under way; the budget bounds their sum.

    Tokens of a prompt are known only when they are paid for, so that ``max_tokens`` may be exceeded
    by what prompts of the calls under way have more than the longest before.
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    calls: int = 0
    tokens: int = 0
    longest_prompt: int = 0
    _open: list[Promise] = field(default_factory=list)
    _lock: Any = field(default_factory=Lock, repr=False)

    def promise(self, calls: int, tokens: int) -> Promise:
        """Keep so much for one query, or CallError when the budget has less."""
        with self._lock:
            self._need(calls, tokens)
            made = Promise(calls, tokens)
            self._open.append(made)
            return made

    def withdraw(self, promise: Promise) -> None:
        """Free what a promise has left."""
        with self._lock:
            if promise in self._open:
                self._open.remove(promise)

    def send(self, promise: Promise) -> None:
        """Count a call that is about to be sent, first from the promise, then from the rest."""
        with self._lock:
            if promise.calls > 0:
                promise.calls -= 1
            else:
                self._need(1, 0)
            self.calls += 1

    def count(self, promise: Promise, prompt: int, answer: int) -> None:
        """Count the tokens of an answered call."""
        with self._lock:
            promise.tokens = max(0, promise.tokens - prompt - answer)
            self.tokens += prompt + answer
            self.longest_prompt = max(self.longest_prompt, prompt)

    def _need(self, calls: int, tokens: int) -> None:
        wanted = {
            "max_calls": (calls, self.calls, sum(p.calls for p in self._open), self.max_calls),
            "max_tokens": (tokens, self.tokens, sum(p.tokens for p in self._open), self.max_tokens),
        }
        for name, (more, used, kept, limit) in wanted.items():
            if limit is not None and more and used + kept + more > limit:
                raise CallError(
                    f"the budget {name} = {limit} is used up: {used} used, {kept} kept for queries "
                    f"under way, {more} wanted. Load the model with a larger one for the rest."
                )


class Service:
    """A JSON service at an address."""

    def __init__(self, base: str, limits: Limits | None = None) -> None:
        self.base = _address(base)
        self.limits = limits or Limits()
        self.meter = Meter(self.limits.max_calls, self.limits.max_tokens)
        near = urlsplit(self.base).hostname in HERE
        proxies = urllib.request.ProxyHandler({} if near else None)  # None: of the environment
        self._opener = urllib.request.build_opener(_NoRedirect, proxies)
        self._lock = Lock()
        self._next = 0.0  # when the next call may begin
        self._reached = False  # has it ever answered
        self._patient = True  # False while the service is down: no retries then

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
                if tried > self.limits.retries or not (self._patient and self._reached):
                    self._patient = False
                    raise _after(error, tried) from error
                self._pause(error, tried, halt)
            else:
                self._patient = self._reached = True
                return found

    def once(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that one call returns: a POST of ``body``, or a GET."""
        data = None if body is None else json.dumps(body).encode()
        secret = find_key()
        headers = {"Accept": "application/json", "User-Agent": "fusevlm"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret[1]}"
        request = urllib.request.Request(self.base + path, data=data, headers=headers)
        try:
            with self._opener.open(request, timeout=self.limits.timeout) as answer:
                kind = answer.headers.get_content_type()
                if kind == "text/event-stream":
                    raise CallError(
                        "the server sent a stream (text/event-stream) though none was asked for. "
                        "Switch streaming off in the server or the proxy before it."
                    )
                text = answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error) from None  # the request, with its headers, stays unseen
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error, self.base, self.limits.timeout) from None
        return _parsed(text)

    def _wait_turn(self, stop: Event) -> None:
        """Hold the call back until its turn: calls per minute, and what a server asked to wait."""
        with self._lock:
            start = max(time.monotonic(), self._next)
            self._next = start + (60.0 / self.limits.per_minute if self.limits.per_minute else 0.0)
        _sleep(start - time.monotonic(), stop)

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
            with self._lock:  # nobody else calls before then either
                self._next = max(self._next, time.monotonic() + error.wait)
        logger.info("call %d failed (%s): once more in %.1f s", tried, error, seconds)
        _sleep(seconds, stop)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is told, not followed: the key is meant for the address that was given."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


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
    except ValueError as error:
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


def _refusal(error: urllib.error.HTTPError) -> CallError:
    """An HTTP status as an error that says what to do."""
    try:
        body = error.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        body = ""
    try:
        words = _words(json.loads(body))
    except ValueError:
        words = cleared(body)
    status = error.code
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
        wait = _retry_after(error.headers.get("Retry-After"))
        return CallError(f"{said}: {what}.", status=status, passing=True, wait=wait)
    return CallError(f"{said}: the server refused the call.", status=status)


def _broken(error: Exception, base: str, timeout: float) -> CallError:
    """A call that ended without a whole answer."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return CallError(f"no answer within timeout = {timeout:g} s.", passing=True)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return CallError(f"the certificate of {base} is not trusted: {reason.verify_message}.")
    if isinstance(reason, http.client.IncompleteRead):
        return CallError("the server's answer broke off in the middle.", passing=True)
    if isinstance(reason, ConnectionRefusedError):
        return CallError(
            f"nothing listens at {base}. Start the server, or correct the address.", passing=True
        )
    said = cleared(str(reason)) or type(reason).__name__
    return CallError(f"the connection to {base} failed: {said}.", passing=True)


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
