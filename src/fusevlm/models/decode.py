"""The sampling loop: all samples of all queries of a batch, one token at a time.

What is recorded of each row, and how its tokens are chosen: :mod:`fusevlm.models.rows`. A truncated
answer's last token is fed once more to have its own state.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from fusevlm.checks import FloatArray, IntArray
from fusevlm.models import draws, shared_prefix
from fusevlm.models.layers import LayerTap
from fusevlm.models.protocol import Decoding
from fusevlm.models.rows import (
    JUDGED,
    Drawn,
    Failure,
    Row,
    broken_at,
    pick,
    record,
    stopped,
    worded,
)


@dataclass(frozen=True)
class Prompt:
    """A query after prefill."""

    query_id: str
    logits: torch.Tensor  # [V] of the first response token
    cache: Any  # transformers' cache of the prompt, batch 1
    position: int  # rotary position of the first response token
    length: int
    states: dict[str, torch.Tensor]  # hidden states of the last prompt token, by layer


@dataclass(frozen=True)
class Wish:
    """A prompt, and the places of the samples that are to be drawn of it; or the judged answer."""

    prompt: Prompt
    places: Sequence[int]

    @property
    def query_id(self) -> str:
        return self.prompt.query_id


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
    model: Decoder, wishes: Sequence[Wish], temperatures: FloatArray, seed: int
) -> dict[str, Drawn | Failure]:
    """The wanted samples of each prompt; a query whose logits turn NaN is an error.

    ``temperatures`` are those of all samples that may ever be drawn of a query, by place.
    """
    settings = model.decoding
    steps = settings.max_new_tokens
    device = wishes[0].prompt.logits.device
    heats = np.r_[temperatures, settings.answer_temperature]  # JUDGED is the last
    heat = np.concatenate([heats[list(w.places)] for w in wishes])
    # the judged answer's numbers are those of the place after all samples
    keys = [[len(temperatures) if k == JUDGED else k for k in w.places] for w in wishes]
    u = np.concatenate(
        [draws.uniforms(seed, w.query_id, own, steps) for w, own in zip(wishes, keys, strict=True)]
    )
    owner = np.repeat(np.arange(len(wishes)), [len(w.places) for w in wishes])  # of each row
    rows = [Row(states=dict(w.prompt.states)) for w in wishes for _ in w.places]
    logits = torch.stack([w.prompt.logits for w in wishes for _ in w.places])
    alive = np.arange(len(rows))
    failed: dict[str, Failure] = {}
    with torch.inference_mode():
        prompts = [w.prompt for w in wishes]
        stepper = (SharedStep if model.shares else RepeatedStep)(model, prompts, owner)
        for step in range(steps):
            for q in broken_at(logits, owner[alive]):
                why = f"NaN or infinite logits at token {step + 1}."
                failed[wishes[q].query_id] = Failure(why)
            broken = [q for q, w in enumerate(wishes) if w.query_id in failed]
            choice = pick(logits, heat[alive], u[alive, step], settings)
            open_ = record([rows[i] for i in alive], choice, model.eos)
            open_ &= ~np.isin(owner[alive], broken)
            alive = alive[open_]
            if not len(alive):
                break
            logits = stepper.feed(choice.token[torch.as_tensor(open_, device=device)], alive, step)
            for name, states in model.tap.states().items():
                for i, state in zip(alive, states, strict=True):
                    rows[i].states[name] = state
            if settings.stop:
                running = np.array(
                    [not stopped(rows[i], model.tokenizer, settings.stop) for i in alive]
                )
                alive, logits = alive[running], logits[torch.as_tensor(running, device=device)]
    for i in alive:
        rows[i].truncated = True
    return {
        w.query_id: failed.get(w.query_id)
        or _finished(model, w, [row for row, q in zip(rows, owner, strict=True) if q == k])
        for k, w in enumerate(wishes)
    }


class SharedStep:
    """Feeds tokens while each prompt's cache stays at batch 1 and rows keep only their own part."""

    def __init__(self, model: Decoder, prompts: Sequence[Prompt], owner: IntArray) -> None:
        from transformers import DynamicCache

        self.model, self.owner = model, owner
        self.position = np.array([p.position for p in prompts])[owner]
        self.keys = [[layer.keys for layer in p.cache.layers] for p in prompts]
        self.values = [[layer.values for layer in p.cache.layers] for p in prompts]
        self.own = DynamicCache(config=model.decoder.config)
        self.held: IntArray | None = None

    def feed(self, tokens: torch.Tensor, rows: IntArray, step: int) -> torch.Tensor:
        """Logits [k, V] after one more token for each of the ``rows``; other rows are dropped."""
        if self.held is not None:
            _select(self.own, self.held, rows)
        self.held = rows
        borders = np.searchsorted(self.owner[rows], np.arange(len(self.keys) + 1))
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

    def __init__(self, model: Decoder, prompts: Sequence[Prompt], owner: IntArray) -> None:
        (prompt,) = prompts
        self.model, self.position = model, prompt.position
        self.cache = copy.deepcopy(prompt.cache)  # the prompt may be continued once more
        self.cache.batch_repeat_interleave(len(owner))
        self.held: IntArray = np.arange(len(owner))

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


def _finished(model: Decoder, wish: Wish, rows: list[Row]) -> Drawn:
    for row in rows:
        row.text = worded(row.tokens, model.tokenizer, model.decoding.stop)
    prompt = wish.prompt
    return Drawn(dict(zip(wish.places, rows, strict=True)), prompt.length, prompt.states)
