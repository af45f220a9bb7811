"""Generations as parts of a run: everything later stages need, and never a VLM again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fusevlm.errors import InputError
from fusevlm.store.parts import PartStore, read_parts
from fusevlm.types import Generation, Samples

KIND = "fusevlm.generations"


Whiten = Callable[[Samples], tuple[np.ndarray[Any, Any], int]]


def write_generations(
    store: PartStore,
    index: int,
    generations: Sequence[Generation],
    *,
    half: bool = False,
    gram: Whiten | None = None,
) -> None:
    """One part: a row per query (failed ones too) and the hidden states by query and layer.

    With ``gram`` (a fitted whitening) the n×n Gram matrices are kept instead of the states.
    """
    rows: dict[str, list[Any]] = {name: [] for name in _ROW}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    dtype = np.float16 if half else np.float32
    for k, g in enumerate(generations):
        for name, value in _row(g).items():
            rows[name].append(value)
        if gram is not None and g.samples is not None:
            G, rows["gram_dim"][-1] = gram(g.samples)
            arrays[f"{k}.gram"] = G
            continue
        for layer, states in g.layers.items():
            arrays[f"{k}.{layer}"] = np.asarray(states, dtype=dtype)
        for layer, state in g.answer_layers.items():
            arrays[f"{k}.{layer}.answer"] = np.asarray(state, dtype=dtype)
    failed = sum(g.error is not None for g in generations)
    near = sum(g.n_near_boundary for g in generations)
    facts = {"queries": len(generations), "failed": failed, "near_boundary": near}
    store.write(index, rows, arrays, facts)


def read_generations(
    folder: str | os.PathLike[str], layer: str | None = None
) -> Iterator[Generation]:
    """Stored generations in order; ``layer`` chooses the hidden states that become embeddings."""
    for rows, arrays in read_parts(folder, KIND):
        for k in range(len(rows["query_id"])):
            record = {name: values[k] for name, values in rows.items()}
            names = record.pop("layers")
            layers = {name: arrays[f"{k}.{name}"] for name in names if f"{k}.{name}" in arrays}
            judged = {name: arrays[f"{k}.{name}.answer"] for name in layers}
            yield _generation(record, layers, judged, arrays.get(f"{k}.gram"), layer)


_ROW = (
    "query_id", "error", "texts", "token_ids", "token_logprobs", "warped_logprobs", "temperatures",
    "truncated", "answer", "answer_token_ids", "answer_logprobs", "prompt_tokens", "path",
    "n_near_boundary", "gram_dim", "layers",
)  # fmt: skip


def _row(g: Generation) -> dict[str, Any]:
    s = g.samples
    logprobs = None if s is None else s.token_logprobs
    judged = None if s is None else s.answer_logprobs
    return {
        "query_id": g.query_id,
        "error": g.error,
        "texts": [] if s is None else list(s.texts),
        "token_ids": [list(map(int, ids)) for ids in g.token_ids],
        "token_logprobs": None if logprobs is None else [list(map(float, r)) for r in logprobs],
        "warped_logprobs": [list(map(float, r)) for r in g.warped_logprobs],
        "temperatures": list(map(float, g.temperatures)),
        "truncated": list(map(bool, g.truncated)),
        "answer": None if s is None else s.answer,
        "answer_token_ids": list(map(int, g.answer_token_ids)),
        "answer_logprobs": None if judged is None else list(map(float, judged)),
        "prompt_tokens": g.prompt_tokens,
        "path": g.path,
        "n_near_boundary": g.n_near_boundary,
        "gram_dim": None if s is None else s.gram_dim,
        "layers": list(g.layers),  # the first one is the samples' embeddings
    }


def _generation(
    row: dict[str, Any],
    layers: dict[str, Any],
    judged: dict[str, Any],
    gram: Any,
    layer: str | None,
) -> Generation:
    if row["error"] is not None:
        return Generation(row["query_id"], error=row["error"])
    chosen = layer or next(iter(layers), None)
    if chosen is not None and chosen not in layers:
        raise InputError(f"layer {chosen!r} was not kept; the run has {', '.join(layers)}.")
    samples = Samples(
        row["texts"],
        row["token_logprobs"],
        None if chosen is None else layers[chosen],
        row["answer"],
        row["answer_logprobs"],
        gram,
        row["gram_dim"],
    )
    kept = (
        "token_ids", "warped_logprobs", "temperatures", "truncated", "answer_token_ids",
        "prompt_tokens", "path", "n_near_boundary",
    )  # fmt: skip
    return Generation(
        row["query_id"], samples, layers=layers, answer_layers=judged, **{k: row[k] for k in kept}
    )
