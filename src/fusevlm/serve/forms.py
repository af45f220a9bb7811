"""From requests to queries and rows, and from answers to replies: the same over HTTP and MCP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

from fusevlm import checks
from fusevlm.data.sampled import Sampled, samples_of
from fusevlm.errors import InputError
from fusevlm.serve.desk import Desk, Terms, Told, measures_of
from fusevlm.serve.faults import Fault
from fusevlm.serve.pictures import picture_of
from fusevlm.serve.schemas import AskRequest, ChatOptions, ScoreRequest, Wanted
from fusevlm.types import Query

Picture = Callable[[str, int], bytes]  # a picture by what names it, and the most pixels


def wanted(desk: Desk, asked: Wanted | None) -> tuple[float, float]:
    """Risk and delta of a request; the server's where it says nothing."""
    risk = desk.offer.risk if asked is None or asked.risk is None else asked.risk
    delta = desk.offer.delta if asked is None or asked.delta is None else asked.delta
    return risk, delta


def terms_of(desk: Desk, asked: AskRequest | ChatOptions | None, seed: int) -> Terms:
    """On which terms a request asks."""
    if asked is None:
        return Terms(*wanted(desk, None), seed=seed)
    if asked.n is not None and asked.samples is not None:
        raise Fault("invalid", where="n", what="given beside samples; give one of them")
    return Terms(*wanted(desk, asked), n=asked.n, samples=asked.samples, seed=seed)


def query_of(desk: Desk, asked: AskRequest, picture: Picture = picture_of) -> tuple[Query, Terms]:
    """What is asked, and on which terms."""
    terms = terms_of(desk, asked, asked.seed)
    if asked.image is not None and asked.images:
        raise Fault("invalid", where="image", what="given beside images; give one of them")
    if not asked.question.strip():
        raise Fault("invalid", where="question", what="it is empty")
    urls = asked.images if asked.image is None else [asked.image]
    history = [(turn.role, turn.text) for turn in asked.history]
    images = [picture(url, desk.limits.pixels) for url in urls]
    return Query("ask", asked.question, images, history), terms


def row_of(desk: Desk, asked: ScoreRequest, picture: Picture = picture_of) -> Sampled:
    """Samples that were brought, as a fit judges them."""
    given = {
        "samples": asked.samples,
        "logprobs": asked.logprobs,
        "answer": asked.answer,
        "answer_logprobs": asked.answer_logprobs,
    }
    images = [] if asked.image is None else [picture(asked.image, desk.limits.pixels)]
    try:
        samples = samples_of(given)
        if desk.scorer is not None:
            features = desk.scorer.features
            checks.same_names(asked.columns, (*features.prior, *features.evidence), "columns")
    except (InputError, ValueError, TypeError) as error:
        raise Fault("cannot_ask", words=str(error)) from error
    return Sampled(Query("score", asked.question, images), samples, columns=asked.columns)


async def scored(
    desk: Desk, asked: ScoreRequest, row: Sampled
) -> tuple[Told | None, dict[str, Any]]:
    """What was decided of a row, if anything was, and the reply to it."""
    told = None if desk.scorer is None else await desk.score(row, *wanted(desk, asked))
    assert row.samples is not None
    return told, {
        "id": None if told is None else told.id,
        "answer": row.samples.answer or "",
        "judged": None if told is None else reply(told),
        "measures": measures_of(row.samples),
    }


def reply(told: Told) -> dict[str, Any]:
    """An answer as JSON can hold it: what is not known is null."""

    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: known(one) for key, one in value.items()}
        if isinstance(value, list):
            return [known(one) for one in value]
        return None if isinstance(value, float) and isnan(value) else value

    return {"id": told.id, **known(told.answer.as_dict())}


def fault_of_form(errors: Sequence[Any]) -> Fault:
    """What is wrong with a request, as pydantic tells it; what it held is not repeated."""
    first = errors[0]
    if first["type"] == "json_invalid":
        place = first["loc"][-1]
        where = f" (at character {place})" if isinstance(place, int) else ""
        return Fault("malformed_json", where=where)
    path = [str(part)[:40] for part in first["loc"] if part != "body"][:7]
    what = str(first["msg"]).rstrip(".")
    return Fault("invalid", where=".".join(path) or "the body", what=what[:1].lower() + what[1:])
