"""The sampling loop: all samples of all queries of a batch, one token at a time.

It records, for each row, the tokens, their log-probabilities under the unwarped distribution at
temperature 1 and under the one they were drawn from, the margin of the best token over the second
best (EOS included), and the hidden state of the last response token, which is the last one before
EOS. A truncated answer's last token is fed once
more to have its own state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.models import draws, shared_prefix
from fusevlm.models.layers import LayerTap
from fusevlm.models.protocol import Decoding

PICK_ELEMENTS = 1_000_000  # rows × vocabulary handled at once when choosing tokens


@dataclass(frozen=True)
class Prompt:
    """A query after prefill."""

    query_id: str
    logits: torch.Tensor  # [V] of the first response token
    cache: Any  # transformers' cache of the prompt, batch 1
    position: int  # rotary position of the first response token
    length: int
    states: dict[str, torch.Tensor]  # hidden states of the last prompt token, by layer


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
class Decoded:
    """The finished rows of a query: its samples, then the judged answer."""

    rows: list[Row]
    prompt_tokens: int
    n_near_boundary: int
    prompt_states: dict[str, torch.Tensor]  # of the last prompt token, by layer


class Decoder(Protocol):
    """What the loop needs of a model."""

    decoder: Any
    head: Any
    tap: LayerTap
    eos: frozenset[int]
    decoding: Decoding
    shares: bool

    @property
    def tokenizer(self) -> Any: ...


def decode(
    model: Decoder, prompts: Sequence[Prompt], temperatures: FloatArray, seed: int
) -> dict[str, Decoded | str]:
    """n samples and the judged answer of each prompt; a query whose logits turn NaN is an error."""
    settings = model.decoding
    per_query = len(temperatures) + 1
    steps = settings.max_new_tokens
    device = prompts[0].logits.device
    heat = np.tile(np.r_[temperatures, settings.answer_temperature], len(prompts))
    u = np.concatenate([draws.uniforms(seed, p.query_id, per_query, steps) for p in prompts])
    rows = [Row(states=dict(p.states)) for p in prompts for _ in range(per_query)]
    logits = torch.stack([p.logits for p in prompts]).repeat_interleave(per_query, dim=0)
    alive = np.arange(len(rows))
    failed: dict[str, str] = {}
    with torch.inference_mode():
        stepper = (SharedStep if model.shares else RepeatedStep)(model, prompts, per_query)
        for step in range(steps):
            for q in _broken(logits, alive // per_query):
                failed[prompts[q].query_id] = f"NaN or infinite logits at token {step + 1}."
            broken = [q for q, p in enumerate(prompts) if p.query_id in failed]
            choice = pick(logits, heat[alive], u[alive, step], settings)
            open_ = _record([rows[i] for i in alive], choice, model.eos)
            open_ &= ~np.isin(alive // per_query, broken)
            alive = alive[open_]
            if not len(alive):
                break
            logits = stepper.feed(choice.token[torch.as_tensor(open_, device=device)], alive, step)
            for name, states in model.tap.states().items():
                for i, state in zip(alive, states, strict=True):
                    rows[i].states[name] = state
            if settings.stop:
                running = np.array([not _stopped(rows[i], model) for i in alive])
                alive, logits = alive[running], logits[torch.as_tensor(running, device=device)]
    for i in alive:
        rows[i].truncated = True
    return {
        p.query_id: failed.get(p.query_id) or _finished(model, p, rows[k : k + per_query])
        for k, p in zip(range(0, len(rows), per_query), prompts, strict=True)
    }


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


class SharedStep:
    """Feeds tokens while each prompt's cache stays at batch 1 and rows keep only their own part."""

    def __init__(self, model: Decoder, prompts: Sequence[Prompt], per_query: int) -> None:
        from transformers import DynamicCache

        self.model, self.per_query = model, per_query
        self.position = np.repeat([p.position for p in prompts], per_query)
        self.keys = [[layer.keys for layer in p.cache.layers] for p in prompts]
        self.values = [[layer.values for layer in p.cache.layers] for p in prompts]
        self.own = DynamicCache(config=model.decoder.config)
        self.held: IntArray | None = None

    def feed(self, tokens: torch.Tensor, rows: IntArray, step: int) -> torch.Tensor:
        """Logits [k, V] after one more token for each of the ``rows``; other rows are dropped."""
        if self.held is not None:
            _select(self.own, self.held, rows)
        self.held = rows
        borders = np.searchsorted(rows, np.arange(len(self.keys) + 1) * self.per_query)
        active = [
            shared_prefix.Prefix(keys, values, slice(int(start), int(stop)))
            for keys, values, start, stop in zip(
                self.keys, self.values, borders[:-1], borders[1:], strict=True
            )
            if stop > start
        ]
        with shared_prefix.prefixes(active):
            return _forward(self.model, tokens, self.position[rows] + step, self.own)


class RepeatedStep:
    """Feeds tokens with the prompt's cache copied for every row: the fallback, one prompt only."""

    def __init__(self, model: Decoder, prompts: Sequence[Prompt], per_query: int) -> None:
        (prompt,) = prompts
        self.model, self.position = model, prompt.position
        self.cache = prompt.cache
        self.cache.batch_repeat_interleave(per_query)
        self.held: IntArray = np.arange(per_query)

    def feed(self, tokens: torch.Tensor, rows: IntArray, step: int) -> torch.Tensor:
        """Logits [k, V] after one more token for each of the ``rows``; other rows are dropped."""
        _select(self.cache, self.held, rows)
        self.held = rows
        return _forward(self.model, tokens, np.full(len(rows), self.position + step), self.cache)


def _forward(model: Decoder, tokens: torch.Tensor, position: IntArray, cache: Any) -> torch.Tensor:
    with model.tap:
        out = model.decoder(
            input_ids=tokens[:, None],
            position_ids=torch.as_tensor(position, device=tokens.device)[:, None],
            past_key_values=cache,
            use_cache=True,
        )
    logits: torch.Tensor = model.head(out.last_hidden_state[:, -1]).float()
    cap = getattr(model.decoder.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _select(cache: Any, held: IntArray, rows: IntArray) -> None:
    """Keep only ``rows`` of the ``held`` ones in the cache."""
    if len(rows) != len(held):
        index = torch.as_tensor(np.searchsorted(held, rows))
        cache.batch_select_indices(index.to(cache.layers[0].keys.device))


def _record(rows: Sequence[Row], choice: Choice, eos: frozenset[int]) -> BoolArray:
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


def _broken(logits: torch.Tensor, query: IntArray) -> set[int]:
    """Queries any of whose rows has no usable distribution (−inf alone is a masked token)."""
    bad = (torch.isnan(logits) | (logits == torch.inf)).any(dim=-1)
    return {int(q) for q in query[bad.cpu().numpy()]}


def _stopped(row: Row, model: Decoder) -> bool:
    text = model.tokenizer.decode(row.tokens, skip_special_tokens=True)
    return any(stop in text for stop in model.decoding.stop)


def _finished(model: Decoder, prompt: Prompt, rows: list[Row]) -> Decoded:
    for row in rows:
        text = model.tokenizer.decode(row.tokens, skip_special_tokens=True)
        for stop in model.decoding.stop:
            text = text.split(stop)[0]
        row.text = text.strip()
    return Decoded(rows, prompt.length, sum(row.n_near for row in rows), prompt.states)
