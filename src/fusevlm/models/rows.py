"""Answers in the making: how their tokens are chosen, what is recorded of them, what comes of it.

Of each row are recorded the tokens, their log-probabilities under the unwarped distribution at
temperature 1 and under the one they were drawn from, the margin of the best token over the second
best (EOS included), and the hidden state of the last response token, which is the last one before
EOS. Whoever makes the logits, the choice is made here, by numbers that depend on nothing but the
seed, the query, the sample and the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import FuseError, InputError
from fusevlm.models import draws
from fusevlm.models.devices import out_of_memory
from fusevlm.models.protocol import Decoding
from fusevlm.types import Generation, Samples

JUDGED = -1  # the judged answer's place among the samples
PICK_ELEMENTS = 1_000_000  # rows × vocabulary handled at once when choosing tokens
# what a broken query can raise inside a processor or a model; anything else is a bug and surfaces
QUERY_ERRORS = (
    FuseError, ValueError, TypeError, IndexError, KeyError, RuntimeError, OSError, MemoryError,
)  # fmt: skip


@dataclass
class Row:
    """One answer in the making."""

    tokens: list[int] = field(default_factory=list)  # without EOS
    logprobs: list[float] = field(default_factory=list)  # with EOS
    warped: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    text: str = ""
    truncated: bool = False
    n_near: int = 0  # draws near a boundary


@dataclass(frozen=True)
class Drawn:
    """The finished rows of a query by place: samples 0, 1, … and the judged answer."""

    rows: dict[int, Row]
    prompt_tokens: int
    prompt_states: dict[str, torch.Tensor]  # of the last prompt token, by layer


@dataclass(frozen=True)
class Failure:
    """Why a query has no answer, whether that may pass, whether the query itself is refused."""

    reason: str
    passing: bool = False
    refused: bool = False

    def of(self, query_id: str) -> Generation:
        """What came of the query: nothing."""
        return Generation(query_id, error=self.reason, passing=self.passing, refused=self.refused)


@dataclass(frozen=True)
class Choice:
    """The tokens chosen for some rows, and what their distributions say of them."""

    token: torch.Tensor  # [rows]
    logprob: list[float]  # at temperature 1, nothing cut off
    warped: list[float]  # under the distribution it was drawn from
    near: list[bool]
    margin: list[float]  # of the best token over the second best, at temperature 1


def pick(logits: torch.Tensor, heat: FloatArray, u: FloatArray, settings: Decoding) -> Choice:
    """Choose one token per row of logits [rows, V], a bounded number of rows at a time."""
    chunk = max(1, PICK_ELEMENTS // logits.shape[-1])
    found: list[tuple[torch.Tensor, ...]] = []
    for start in range(0, len(logits), chunk):
        part = logits[start : start + chunk]
        cut = slice(start, start + len(part))
        temperatures = torch.as_tensor(heat[cut], dtype=part.dtype, device=part.device)
        p = draws.warp(part, temperatures, top_p=settings.top_p, top_k=settings.top_k)
        token, near = draws.choose(p, torch.as_tensor(u[cut], device=part.device))
        margin = draws.margins(part)
        near |= (temperatures == 0) & (margin < draws.NEAR_BOUNDARY)
        index = token[:, None]
        plain = part.gather(-1, index)[:, 0] - part.logsumexp(dim=-1)
        found.append((token, plain, p.gather(-1, index)[:, 0].log(), near, margin))
    columns = (torch.cat(column) for column in zip(*found, strict=True))
    token, plain, warped, near, margin = columns
    return Choice(token, plain.tolist(), warped.tolist(), near.tolist(), margin.tolist())


def record(rows: Sequence[Row], choice: Choice, eos: frozenset[int]) -> BoolArray:
    """Write the choice into the rows; True where the row goes on."""
    going = np.ones(len(rows), dtype=np.bool_)
    columns = zip(
        choice.token.tolist(), choice.logprob, choice.warped, choice.near, choice.margin,
        strict=True,
    )  # fmt: skip
    for k, (row, (token, plain, warped, near, margin)) in enumerate(
        zip(rows, columns, strict=True)
    ):
        row.logprobs.append(plain)
        row.warped.append(warped)
        row.margins.append(margin)
        row.n_near += near
        if token in eos:
            going[k] = False
        else:
            row.tokens.append(token)
    return going


def broken_at(logits: torch.Tensor, query: IntArray) -> set[int]:
    """Queries any of whose rows has no usable distribution (−inf alone is a masked token)."""
    bad = (torch.isnan(logits) | (logits == torch.inf)).any(dim=-1)
    return {int(q) for q in query[bad.cpu().numpy()]}


def stopped(row: Row, tokenizer: Any, stop: Sequence[str]) -> bool:
    """Whether a row's text holds one of the strings that end an answer."""
    text = tokenizer.decode(row.tokens, skip_special_tokens=True)
    return any(one in text for one in stop)


def worded(tokens: Sequence[int], tokenizer: Any, stop: Sequence[str]) -> str:
    """The text of an answer, up to the first string that ends it."""
    text = str(tokenizer.decode(list(tokens), skip_special_tokens=True))
    for one in stop:
        text = text.split(one)[0]
    return text.strip()


def failure_of(error: BaseException) -> Failure:
    """What went wrong with a query, in words, and whether it may pass."""
    if out_of_memory(error):
        return Failure(f"out of memory: {error}", passing=True)
    text = str(error) or repr(error)
    if isinstance(error, FuseError):
        return Failure(text, passing=error.passing, refused=isinstance(error, InputError))
    return Failure(f"{type(error).__name__}: {text}", passing=isinstance(error, OSError))


def generation_of(
    query_id: str,
    outcome: Drawn | Failure,
    n: int,
    names: Sequence[str],
    temperatures: FloatArray,
    path: str,
) -> Generation:
    """What came of a query with its first n samples.

    The first of the layers' ``names`` is the samples' embeddings.
    """
    if isinstance(outcome, Failure):
        return outcome.of(query_id)
    sampled, judged = [outcome.rows[place] for place in range(n)], outcome.rows[JUDGED]
    drawn = outcome.rows.values()  # one empty answer may be meant; nothing but those is not
    if len(drawn) > 1 and not any(row.tokens for row in drawn):
        return Generation(query_id, error="the model emitted only end-of-sequence tokens.")
    layers = {
        name: torch.stack([row.states[name] for row in sampled]).float().cpu().numpy()
        for name in (names if n else ())
    }
    told = [layers, _numbers(judged.states, names), _numbers(outcome.prompt_states, names)]
    if not all(np.isfinite(state).all() for one in told for state in one.values()):
        return Generation(query_id, error="a hidden state is NaN or infinite.")
    samples = Samples(
        texts=[row.text for row in sampled],
        token_logprobs=[row.logprobs for row in sampled],
        embeddings=layers.get(names[0]),
        answer=judged.text,
        answer_logprobs=judged.logprobs,
        answer_margins=judged.margins,
    )
    return Generation(
        query_id,
        samples,
        token_ids=[row.tokens for row in sampled],
        warped_logprobs=[row.warped for row in sampled],
        temperatures=[float(t) for t in temperatures[:n]],
        truncated=[row.truncated for row in sampled],
        answer_token_ids=judged.tokens,
        layers=layers,
        answer_layers=told[1],
        prompt_layers=told[2],
        prompt_tokens=outcome.prompt_tokens,
        path=path,
        n_near_boundary=sum(row.n_near for row in (*sampled, judged)),
    )


def _numbers(states: Mapping[str, torch.Tensor], names: Sequence[str]) -> dict[str, Any]:
    return {name: states[name].float().cpu().numpy() for name in names}
