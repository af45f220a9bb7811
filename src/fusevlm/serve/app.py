"""The paths of the server: what each takes and gives, and what its faults look like."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import Route

from fusevlm import __version__
from fusevlm.serve import chat
from fusevlm.serve.desk import Desk, Look, Terms, Told
from fusevlm.serve.faults import FAULTS, Fault
from fusevlm.serve.forms import fault_of_form, query_of, reply, row_of, scored, terms_of, wanted
from fusevlm.serve.guard import FACTS, REQUEST, Guard
from fusevlm.serve.logs import fault_of, note
from fusevlm.serve.metrics import CONTENT_TYPE
from fusevlm.serve.page import live_page
from fusevlm.serve.schemas import (
    AnswerReply,
    AskRequest,
    ChatReply,
    ChatRequest,
    DecideRequest,
    FeedbackRequest,
    Health,
    Kept,
    Problem,
    ScoreReply,
    ScoreRequest,
    ServedList,
)
from fusevlm.types import Query

EVENTS = "text/event-stream"
EVENT = {  # each event of a stream
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {EVENTS: {"schema": EVENT}}}}
ABOUT = """\
Answers of a vision-language model that say how far they can be trusted: P(wrong), a decision at
the risk you state, and its reason. The error rate among the answers that are given is at most that
risk, with probability 1 − delta, for questions like those of the calibration."""


def create_app(
    desk: Desk, *, token: str | None = None, hosts: Sequence[str] | None = None
) -> FastAPI:
    """The application before a desk; with a token only those who have it are heard.

    hosts  names this server answers to; None: any
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(desk.close)

    app = FastAPI(
        title="fusevlm",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # its page would be loaded from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # it would repeat the client's own idea of where this is
        lifespan=lifespan,
    )
    locked = [Security(HTTPBearer(auto_error=False))] if token else []
    _add_asking(app, desk, locked)
    _add_chat(app, desk, locked)
    _add_judging(app, desk, locked)
    _add_state(app, desk, locked)
    _add_faults(app)
    routes = [route for route in app.routes if isinstance(route, Route)]
    posted = {route.path for route in routes if "POST" in (route.methods or ())}
    app.add_middleware(Guard, desk=desk, posted=posted, token=token, hosts=hosts)
    return app


def _add_asking(app: FastAPI, desk: Desk, locked: Sequence[Any]) -> None:
    @app.post(
        "/v1/ask",
        response_model=AnswerReply,
        responses=STREAMED | faults(404, 408, 413, 429, 500, 502, 503, 504),
        dependencies=locked,
        summary="A question about a picture: answer, P(wrong), decision and reason",
    )
    async def ask(request: Request, asked: AskRequest) -> Response:
        query, terms = await asyncio.to_thread(query_of, desk, asked)
        if asked.stream:
            return await _streamed(desk, request, query, terms)
        told = await desk.ask(query, terms)
        return JSONResponse(_reply(request, told))

    @app.post(
        "/v1/decide",
        response_model=AnswerReply,
        responses=faults(404, 408, 409, 413, 500),
        dependencies=locked,
        summary="The same answer at another risk; nothing is sampled again",
    )
    async def decide(request: Request, asked: DecideRequest) -> Response:
        told = await asyncio.to_thread(desk.decide, asked.id, *wanted(desk, asked))
        return JSONResponse(_reply(request, told))

    @app.post(
        "/v1/feedback",
        response_model=Kept,
        responses=faults(404, 408, 409, 413, 500),
        dependencies=locked,
        summary="Was an answer wrong? Kept in a table that fusevlm fit reads",
    )
    async def feedback(said: FeedbackRequest) -> Response:
        await asyncio.to_thread(desk.feedback, said.id, said.wrong)
        return JSONResponse({"id": said.id, "kept": True})


def _add_chat(app: FastAPI, desk: Desk, locked: Sequence[Any]) -> None:
    @app.post(
        "/v1/chat/completions",
        response_model=ChatReply,
        responses=STREAMED | faults(404, 408, 413, 429, 500, 502, 503, 504),
        dependencies=locked,
        summary="OpenAI's chat completions, judged before the first word",
    )
    async def completions(request: Request, asked: ChatRequest) -> Response:
        if desk.answerer is not None and asked.model != desk.offer.name:
            raise Fault("unknown_model", name=asked.model)
        ours = asked.fusevlm
        terms = terms_of(desk, ours, asked.seed or 0)
        query = await asyncio.to_thread(chat.query_of, asked, desk.limits.pixels)
        told = await desk.ask(query, terms)
        verdict = {**_reply(request, told), "ignored": chat.ignored(asked)}
        on_abstain = (ours and ours.on_abstain) or desk.offer.on_abstain
        text = chat.said(told.answer, on_abstain)
        parts = (f"chatcmpl-{told.id}", desk.offer.name, text, verdict)
        if asked.stream:
            return StreamingResponse(_sent(chat.chunks(*parts)), media_type=EVENTS)
        return JSONResponse(chat.completion(*parts), headers=chat.headers_of(told.id, told.answer))

    begun = int(time.time())

    @app.get(
        "/v1/models",
        response_model=ServedList,
        responses=faults(500),
        dependencies=locked,
        summary="The model that can be asked",
    )
    async def models() -> Response:
        served = [] if desk.answerer is None else [desk.offer.name]
        rows = [
            {"id": name, "object": "model", "created": begun, "owned_by": "fusevlm"}
            for name in served
        ]
        return JSONResponse({"object": "list", "data": rows})


def _add_judging(app: FastAPI, desk: Desk, locked: Sequence[Any]) -> None:
    @app.post(
        "/v1/score",
        response_model=ScoreReply,
        responses=faults(408, 413, 429, 500, 503, 504),
        dependencies=locked,
        summary="Samples of your own: P(wrong), decision and reason where there is a fit",
    )
    async def score(request: Request, asked: ScoreRequest) -> Response:
        row = await asyncio.to_thread(row_of, desk, asked)
        told, found = await scored(desk, asked, row)
        if told is not None:
            _note(request, told)
        return JSONResponse(found)


def _add_state(app: FastAPI, desk: Desk, locked: Sequence[Any]) -> None:
    @app.get("/", response_class=HTMLResponse, summary="The live page",
             responses=faults(500, json_reply=False))  # fmt: skip
    async def page() -> Response:
        text, policy = live_page(desk)
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    @app.get("/healthz", response_model=Health, summary="Does the server live?",
             responses=faults(500))  # fmt: skip
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", response_model=Health, summary="Does it take queries?",
             responses=faults(500, 503))  # fmt: skip
    async def readyz() -> Response:
        why = desk.not_ready()
        if why:
            raise Fault("not_ready", words=why)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", response_class=PlainTextResponse, dependencies=locked,
             summary="What was counted, as Prometheus reads it",
             responses=faults(500, json_reply=False))  # fmt: skip
    async def metrics() -> Response:
        return Response(desk.metrics_text(), media_type=CONTENT_TYPE)


def _add_faults(app: FastAPI) -> None:
    @app.exception_handler(Fault)
    async def fault(request: Request, error: Fault) -> Response:
        return _refused(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _refused(request, fault_of_form(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        code = {404: "nothing_here", 405: "wrong_method"}.get(error.status_code, "malformed_json")
        facts = {"where": ""} if code == "malformed_json" else {}
        return _refused(request, Fault(code, error.headers, **facts))


def faults(*statuses: int, json_reply: bool = True) -> dict[int | str, dict[str, Any]]:
    """What a path may be answered with instead, for the documentation; some are of all paths.

    Of a path whose own reply is no JSON that must be said, or its faults would be taken for such.
    """
    named = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    told: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, 400, 401, 415, 421, 422}):
        codes = [code for code, (own, *_) in FAULTS.items() if own == status]
        shape: dict[str, Any] = {"model": Problem} if json_reply else {"content": named}
        told[status] = {**shape, "description": ", ".join(codes)}
    return told


def _refused(request: Request, fault: Fault) -> Response:
    request.scope[FACTS]["code"] = fault.code
    return JSONResponse(fault.body(request.scope[REQUEST]), fault.status, headers=fault.headers)


def _reply(request: Request, told: Told) -> dict[str, Any]:
    """An answer as JSON, and its facts for the log."""
    _note(request, told)
    return reply(told)


def _note(request: Request, told: Told) -> None:
    answer = told.answer
    facts = {"decision": answer.decision, "reason": answer.reason, "samples": answer.generated}
    request.scope[FACTS].update(facts)


async def _sent(pieces: Any) -> AsyncIterator[str]:
    for piece in pieces:
        yield piece


async def _streamed(desk: Desk, request: Request, query: Query, terms: Terms) -> Response:
    """Samples as they come, then the answer; the reply begins with the first of them.

    What goes wrong before that has a status of its own; afterwards it is an event.
    """
    loop, looks = asyncio.get_running_loop(), asyncio.Queue[Look | None]()

    def tell(look: Look) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(looks.put_nowait, look)

    work = asyncio.ensure_future(desk.ask(query, terms, tell))
    work.add_done_callback(lambda _: looks.put_nowait(None))

    async def events(look: Look | None) -> AsyncIterator[str]:
        try:
            while look is not None:
                yield _event("samples", vars(look))
                look = await looks.get()
            yield _last(request, work)
        finally:
            work.cancel()

    try:
        first = await looks.get()
    except asyncio.CancelledError:
        work.cancel()
        raise
    if first is None:
        work.result()  # raises what it met with
    return StreamingResponse(events(first), media_type=EVENTS)


def _last(request: Request, work: asyncio.Future[Told]) -> str:
    """The event that ends a stream: the answer, or what kept it from one."""
    try:
        return _event("answer", _reply(request, work.result()))
    except Fault as error:
        fault = error
    except Exception as error:  # nothing of it may reach the client
        note("failed", logging.ERROR, request=request.scope[REQUEST], **fault_of(error))
        fault = Fault("server_failed")
    request.scope[FACTS]["code"] = fault.code
    return _event("error", fault.body(request.scope[REQUEST]))


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
