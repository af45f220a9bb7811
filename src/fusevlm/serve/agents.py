"""Tools for agents over the Model Context Protocol: ``ask`` and ``score``, as the server's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from fusevlm import __version__
from fusevlm.data.images import MAX_BYTES, Refused, TooLarge, located, measured
from fusevlm.errors import ArtefactError, InputError
from fusevlm.serve.desk import Desk
from fusevlm.serve.faults import Fault, cleaned
from fusevlm.serve.forms import fault_of_form, query_of, reply, row_of, scored
from fusevlm.serve.logs import fault_of, note
from fusevlm.serve.pictures import picture_of
from fusevlm.serve.schemas import AnswerReply, AskRequest, ScoreReply, ScoreRequest
from fusevlm.store.files import read_regular

Reply = TypeVar("Reply")
ABOUT = """\
Ask a vision-language model that says how far its answer can be trusted. Heed `decision`: where it
is "abstain", do not rely on the answer; `why` says what is amiss. `p_wrong` is the probability that
the answer is wrong; among answers with decision "answer" at most the share `risk` is wrong."""
ASK = """\
A question about a picture: the answer, the probability that it is wrong, whether to give it at the
risk you state, and why. `image` is a data URL (data:image/png;base64,…){named}."""
SCORE = """\
How far samples can be trusted that another model gave to one question: their disagreement, and
where the server has a fit the probability that the answer is wrong, a decision and its reason."""


def tools(desk: Desk, images: str | Path | None = None) -> MCPServer[Any]:
    """The tools before a desk; with a folder its pictures may be named."""
    server: MCPServer[Any] = MCPServer(
        "fusevlm", instructions=ABOUT, version=__version__, log_level="WARNING"
    )
    picture = picture_of if images is None else partial(named_picture, Path(images))

    async def ask(
        question: str,
        image: str | None = None,
        risk: float | None = None,
        delta: float | None = None,
        n: int | None = None,
        samples: Literal["as needed"] | float | None = None,
        seed: int = 0,
    ) -> AnswerReply:
        async def work() -> AnswerReply:
            form = AskRequest(
                question=question, image=image, risk=risk, delta=delta, n=n, samples=samples,
                seed=seed,
            )  # fmt: skip
            query, terms = await asyncio.to_thread(query_of, desk, form, picture)
            return AnswerReply(**reply(await desk.ask(query, terms)))

        return await _told("ask", work)

    async def score(
        samples: list[str],
        question: str = "",
        image: str | None = None,
        logprobs: list[list[float]] | None = None,
        answer: str | None = None,
        answer_logprobs: list[float] | None = None,
        columns: dict[str, float] | None = None,
        risk: float | None = None,
        delta: float | None = None,
    ) -> ScoreReply:
        async def work() -> ScoreReply:
            form = ScoreRequest(
                samples=samples, question=question, image=image, logprobs=logprobs, answer=answer,
                answer_logprobs=answer_logprobs, columns=columns or {}, risk=risk, delta=delta,
            )  # fmt: skip
            row = await asyncio.to_thread(row_of, desk, form, picture)
            return ScoreReply(**(await scored(desk, form, row))[1])

        return await _told("score", work)

    named = "" if images is None else ", or the name of a file in the folder of pictures"
    if desk.answerer is not None:
        server.add_tool(ask, description=ASK.format(named=named))
    server.add_tool(score, description=SCORE)
    return server


def run(desk: Desk, images: str | Path | None = None) -> None:
    """Serve an agent over standard input and output until it goes."""
    if images is not None and not Path(images).is_dir():
        raise InputError(f"--images is {images}, which is no folder.")
    try:
        asyncio.run(tools(desk, images).run_stdio_async())
    finally:
        desk.close()


async def _told(tool: str, work: Callable[[], Awaitable[Reply]]) -> Reply:
    """What comes of a call; a fault is told in its words, anything else without."""
    try:
        return await work()
    except ValidationError as error:
        raise ToolError(fault_of_form(error.errors()).message) from None
    except Fault as error:
        raise ToolError(error.message) from None
    except Exception as error:  # nothing of it may reach the agent
        note("failed", logging.ERROR, path=tool, **fault_of(error))
        raise ToolError(Fault("server_failed").message) from None


def named_picture(folder: Path, name: str, most: int) -> bytes:
    """A picture in a data URL, or the file of that name in ``folder``; none outside of it."""
    if name.startswith("data:"):
        return picture_of(name, most)
    place = located(folder, name)
    try:
        if isinstance(place, Refused):
            raise InputError("it lies outside of the folder of pictures")
        data = read_regular(place, MAX_BYTES)
        measured(data, most)
    except TooLarge as error:
        raise Fault("too_many_pixels", words=str(error)) from error
    except (OSError, ValueError, InputError, ArtefactError) as error:
        words = str(error) if isinstance(error, InputError) else "there is no such file"
        raise Fault("not_a_picture", words=f"{cleaned(name)[:80]}: {words}.") from error
    return data
