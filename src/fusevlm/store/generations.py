"""Generations and embeddings as parts of a run: all that later stages need, never a VLM again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusevlm.errors import ArtefactError, InputError
from fusevlm.store.files import AnyPath
from fusevlm.store.parts import Part, Parts, Stored, read_parts
from fusevlm.types import Generation, Samples

KIND, EMBEDDINGS = "fusevlm.generations", "fusevlm.embeddings"
PROMPT = ".prompt"  # ends the name of an array: the last prompt token's state
BEFORE = "_pre"  # ends the name of an array: a tower's activations before its projection
VIEW = "_view"  # and of one by which novelty is judged

GRAM = ".gram"  # and of a Gram matrix that is kept instead of states
OF = "@"  # in the name of such a matrix, behind the layer it is of

Whiten = Callable[[Samples], tuple[np.ndarray[Any, Any], int]]


@dataclass(frozen=True)
class Reduced:
    """What is kept of a query's hidden states: Gram matrices by name, and single states by layer.

    d  features of the states
    """

    grams: Mapping[str, np.ndarray[Any, Any]]
    answers: Mapping[str, Any]
    prompts: Mapping[str, Any]
    d: int


Reduce = Callable[[Generation], Reduced]


def of_layer(layer: str, name: str) -> str:
    """The name of a Gram matrix that is read with the states of this layer, and of no other."""
    return f"{layer}{OF}{name}"


def pack_generations(
    generations: Sequence[Generation],
    *,
    half: bool = False,
    gram: Whiten | None = None,
    reduce: Reduce | None = None,
) -> Part:
    """A row per query (failed ones too) and the hidden states by query and layer.

    With ``gram`` (a fitted whitening) the n×n Gram matrices are kept instead of the states, but
    those of the prompt, one vector a layer, are kept always. With ``reduce`` only what it leaves,
    of states in the precision in which they would be stored.
    """
    rows: dict[str, list[Any]] = {name: [] for name in _ROW}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    dtype = np.float16 if half else np.float32
    for k, g in enumerate(_storable(one, dtype) for one in generations):
        for name, value in _row(g).items():
            rows[name].append(value)
        if reduce is not None and g.samples is not None and g.layers:
            left = reduce(g)
            rows["gram_dim"][-1], rows["layers"][-1] = left.d, []
            arrays |= {f"{k}.{name}{GRAM}": G for name, G in left.grams.items()}
            for ending, kept in ((PROMPT, left.prompts), (".answer", left.answers)):
                arrays |= {f"{k}.{layer}{ending}": v for layer, v in kept.items()}
            continue
        for layer, state in g.prompt_layers.items():
            arrays[f"{k}.{layer}{PROMPT}"] = state
        if gram is not None and g.samples is not None:
            G, rows["gram_dim"][-1] = gram(g.samples)
            arrays[f"{k}.gram"] = G
            continue
        for layer, states in g.layers.items():
            arrays[f"{k}.{layer}"] = states
        for layer, state in g.answer_layers.items():
            arrays[f"{k}.{layer}.answer"] = state
    return Part(rows, arrays, count_rows(rows))


def _storable(g: Generation, dtype: Any) -> Generation:
    """A generation with its states as they are stored, or its failure where one cannot be."""
    kinds = (g.layers, g.answer_layers, g.prompt_layers)
    layers, answers, prompts = ({k: _cast(v, dtype) for k, v in own.items()} for own in kinds)
    for layer, stored in (*layers.items(), *answers.items(), *prompts.items()):
        if not np.isfinite(stored).all():
            why = f"a hidden state of the layer {layer} is too large for {stored.dtype}"
            more = "; set sample.half = false" if dtype == np.float16 else ""
            return Generation(g.query_id, error=f"{why}, or NaN{more}.")
    return replace(g, layers=layers, answer_layers=answers, prompt_layers=prompts)


def _cast(values: Any, dtype: Any) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype)


def count_rows(rows: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Queries of a part, failed ones, those whose reason may pass, and draws near a boundary."""
    failed = [error is not None for error in rows["error"]]
    found = {"queries": len(failed), "failed": sum(failed)}
    for name, column in (("passing", "passing"), ("near_boundary", "n_near_boundary")):
        if column in rows:
            found[name] = int(sum(rows[column]))
    return found


def write_generations(
    parts: Parts,
    index: int,
    generations: Sequence[Generation],
    *,
    half: bool = False,
    gram: Whiten | None = None,
) -> None:
    """One part of :func:`pack_generations`."""
    part = pack_generations(generations, half=half, gram=gram)
    parts.write(index, part.rows, part.arrays, part.facts)


def read_generations(
    folder: AnyPath,
    layer: str | None = None,
    *,
    layers: Sequence[str] = (),
    answers: Sequence[str] = (),
    prompts: Sequence[str] = (),
) -> Iterator[Generation]:
    """Stored generations in order, with the hidden states that are asked for and no others.

    ``layer`` is the one whose states become the samples' embeddings, ``layers`` are further ones;
    of ``answers`` only the judged answer's state is read, where it was kept; ``prompts`` are those
    whose state of the last prompt token is read, where it was stored.
    """
    wish = Wish(layer, tuple(layers), tuple(answers), tuple(prompts))
    for rows, arrays in read_parts(folder, KIND, wish.wanted, columns=STORED):
        yield from wish.unpack(rows, arrays, range(len(rows["query_id"])))


def generations_between(
    stored: Stored, start: int, stop: int, wish: Wish | None = None
) -> Iterator[Generation]:
    """The generations in the rows from ``start`` to ``stop``, with what is wished for of them."""
    chosen = wish or Wish()
    for number, first, end in stored.spans(start, stop):
        yield from chosen.unpack(*stored.read(number, chosen.wanted), range(first, end))


@dataclass(frozen=True)
class Wish:
    """Which hidden states are read; see :func:`read_generations`."""

    layer: str | None = None
    layers: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()

    @property
    def asked(self) -> dict[str, None]:
        """Layers whose states of all samples are read."""
        return dict.fromkeys([*([] if self.layer is None else [self.layer]), *self.layers])

    @property
    def judged(self) -> dict[str, None]:
        """Layers whose state of the judged answer is read."""
        return dict.fromkeys([*self.asked, *self.answers])

    def wanted(self, name: str) -> bool:
        """Whether an array of a part is read."""
        kind = name.partition(".")[2]
        if kind.endswith(PROMPT):
            return kind.removesuffix(PROMPT) in self.prompts
        if kind.endswith(".answer"):
            return kind.removesuffix(".answer") in self.judged
        if kind.endswith(GRAM):
            return bool(self.asked) and _plain(kind, self.layer) is not None
        return kind in self.asked or (bool(self.asked) and kind == "gram")

    def unpack(
        self, rows: Mapping[str, Sequence[Any]], arrays: Mapping[str, Any], places: Iterable[int]
    ) -> Iterator[Generation]:
        """The generations in some rows of a part."""
        asked, judged_at = self.asked, self.judged
        reduced = _grams(arrays, self.layer)
        for k in places:
            record = {name: values[k] for name, values in rows.items()}
            kept = record.pop("layers")
            gone = [name for name in asked if name not in kept]
            if gone and kept and record["error"] is None and record["gram_dim"] is None:
                raise InputError(f"layer {gone[0]!r} was not kept; the run has {', '.join(kept)}.")
            states = {name: arrays[f"{k}.{name}"] for name in asked if f"{k}.{name}" in arrays}
            judged = {
                name: arrays[f"{k}.{name}.answer"]
                for name in judged_at
                if f"{k}.{name}.answer" in arrays
            }
            stored = {name: arrays.get(f"{k}.{name}{PROMPT}") for name in self.prompts}
            prompt = {name: state for name, state in stored.items() if state is not None}
            gram, d = arrays.get(f"{k}.gram"), record["gram_dim"]
            grams = {name: (G, d) for name, G in reduced.get(k, {}).items()}
            yield _generation(record, states, judged, prompt, gram, grams, self.layer)


def _grams(arrays: Mapping[str, Any], layer: str | None) -> dict[int, dict[str, Any]]:
    """Gram matrices that are kept instead of a layer's states, by row and name."""
    found: dict[int, dict[str, Any]] = {}
    for name, values in arrays.items():
        row, _, kind = name.partition(".")
        own = _plain(kind, layer) if kind.endswith(GRAM) else None
        if own is not None:
            found.setdefault(int(row), {})[own] = values
    return found


def _plain(kind: str, layer: str | None) -> str | None:
    """The name of a Gram matrix without its layer; None of another layer. Some say of none."""
    home, of, name = kind.removesuffix(GRAM).rpartition(OF)
    return None if of and home != layer else name


def read_embeddings(
    folder: AnyPath, *, activations: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Ids and ``{"image": [N, D], "text": [N, D]}`` of the queries that could be embedded.

    Instead, with ``activations``, what the towers gave before their projections. What no query has
    is not there: images of queries without pictures, or all of it without towers.
    """
    ending = BEFORE if activations else ""
    ids, found = _good_rows(folder, {name: name + ending for name in ("image", "text")})
    if not ids:
        raise nothing_embedded(folder)
    if activations and not found:
        raise no_activations(folder)
    return ids, found


def no_activations(folder: AnyPath) -> ArtefactError:
    """Of a stage that kept none."""
    return ArtefactError(
        f"{folder} holds no activations of the towers. Make the stage again with "
        f"embed.activations = true: --redo embed."
    )


def nothing_embedded(folder: AnyPath) -> ArtefactError:
    """Of a stage in which every query failed."""
    return ArtefactError(f"{folder} holds no embedded query. Run fusevlm embed first.")


def embedding_blocks(
    folder: AnyPath, size: int, *, activations: bool = False
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """What :func:`read_embeddings` gives, ``size`` queries at a time."""
    ending = BEFORE if activations else ""
    named = {name: name + ending for name in ("image", "text")}
    ids: list[str] = []
    waiting: dict[str, list[Any]] = {}
    parts = read_parts(folder, EMBEDDINGS, set(named.values()).__contains__, columns=EMBEDDED)
    for rows, arrays in parts:
        own, found = _gathered([(rows, arrays, slice(None))], named)
        ids += own
        for name, values in found.items():
            waiting.setdefault(name, []).append(values)
        while len(ids) >= size:
            joined = {name: np.concatenate(values) for name, values in waiting.items()}
            yield ids[:size], {name: values[:size] for name, values in joined.items()}
            ids, waiting = ids[size:], {name: [values[size:]] for name, values in joined.items()}
    if ids:
        yield ids, {name: np.concatenate(values) for name, values in waiting.items()}


def read_views(folder: AnyPath) -> dict[str, Any]:
    """``{"image": [N, D], "question": [N, D]}`` of the same queries; {}: not kept."""
    return _good_rows(folder, VIEWS)[1]


VECTORS = {"image": "image", "text": "text"}  # by what they are called later: names of arrays
VIEWS = {"image": f"image{VIEW}", "question": f"text{BEFORE}"}


def embeddings_between(
    stored: Stored, start: int, stop: int
) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Ids, vectors and views of the queries in these rows that could be embedded."""
    read = {*VECTORS.values(), *VIEWS.values()}
    spans = [
        (*stored.read(number, read.__contains__), slice(first, end))
        for number, first, end in stored.spans(start, stop)
    ]
    ids, found = _gathered(spans, {**{f"v {k}": v for k, v in VECTORS.items()},
                                   **{f"w {k}": v for k, v in VIEWS.items()}})  # fmt: skip
    vectors, views = (
        {k[2:]: rows for k, rows in found.items() if k.startswith(mark)} for mark in ("v ", "w ")
    )
    return ids, vectors, views


def _good_rows(folder: AnyPath, named: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Ids of the queries that could be embedded, and their rows of the arrays that there are."""
    parts = read_parts(folder, EMBEDDINGS, set(named.values()).__contains__, columns=EMBEDDED)
    return _gathered(((rows, arrays, slice(None)) for rows, arrays in parts), named)


def _gathered(
    parts: Iterable[tuple[Mapping[str, Sequence[Any]], Mapping[str, Any], slice]],
    named: Mapping[str, str],
) -> tuple[list[str], dict[str, Any]]:
    """Ids and named arrays of the good rows among some of each part."""
    ids: list[str] = []
    found: dict[str, list[Any]] = {name: [] for name in named}
    for rows, arrays, some in parts:
        good = np.array([error is None for error in rows["error"][some]], dtype=bool)
        ids += [i for i, ok in zip(rows["query_id"][some], good, strict=True) if ok]
        for name, own in named.items():
            if good.any() and own in arrays:
                _need_vectors(arrays[own], own, len(rows["error"]))
                found[name].append(arrays[own][some][good])
    known = {name: parts for name, parts in found.items() if parts}
    for name, vectors in known.items():
        total = sum(map(len, vectors))
        if total != len(ids) or len({part.shape[1] for part in vectors}) > 1:
            raise ArtefactError(
                f"there are {total} {named[name]} vectors of {len(ids)} queries, or of several "
                f"widths. Make the stage again: --redo embed."
            )
    return ids, {name: np.concatenate(vectors) for name, vectors in known.items()}


def _need_vectors(vectors: Any, name: str, size: int) -> None:
    """Refuse vectors of a part that are not one for each of its rows."""
    if vectors.ndim != 2 or len(vectors) != size or vectors.dtype.kind != "f":
        raise ArtefactError(
            f"embed: {name} is an array {vectors.shape} of {vectors.dtype} for {size} queries. "
            f"Make the stage again: --redo embed."
        )


_ROW = (
    "query_id", "error", "passing", "texts", "token_ids", "token_logprobs", "warped_logprobs",
    "temperatures", "truncated", "answer", "answer_token_ids", "answer_logprobs", "prompt_tokens",
    "path", "n_near_boundary", "gram_dim", "layers", "answer_margins",
)  # fmt: skip
EMBEDDED: dict[str, Any] = {"query_id": str, "error": str | None}
STORED = EMBEDDED | {  # but for passing and answer_margins, which parts of before lack
    "texts": list[str], "token_ids": list[list[int]], "token_logprobs": list[list[float]] | None,
    "warped_logprobs": list[list[float]], "temperatures": list[float], "truncated": list[bool],
    "answer": str | None, "answer_token_ids": list[int], "answer_logprobs": list[float] | None,
    "prompt_tokens": int, "path": str, "n_near_boundary": int, "gram_dim": int | None,
    "layers": list[str],
}  # fmt: skip


def _row(g: Generation) -> dict[str, Any]:
    s = g.samples
    logprobs = None if s is None else s.token_logprobs
    judged = None if s is None else s.answer_logprobs
    margins = None if s is None else s.answer_margins
    return {
        "query_id": g.query_id,
        "error": g.error,
        "passing": g.passing,
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
        "answer_margins": None if margins is None else list(map(float, margins)),
    }


def _generation(
    row: dict[str, Any],
    layers: dict[str, Any],
    judged: dict[str, Any],
    prompt: dict[str, Any],
    gram: Any,
    grams: dict[str, Any],
    layer: str | None,
) -> Generation:
    if row["error"] is not None:
        return Generation(row["query_id"], error=row["error"], passing=bool(row.get("passing")))
    samples = Samples(
        row["texts"],
        row["token_logprobs"],
        layers.get(layer) if layer is not None else None,
        row["answer"],
        row["answer_logprobs"],
        gram,
        row["gram_dim"] if gram is not None else None,
        row.get("answer_margins"),  # parts of before have none
        grams=grams,
    )
    kept = (
        "token_ids", "warped_logprobs", "temperatures", "truncated", "answer_token_ids",
        "prompt_tokens", "path", "n_near_boundary",
    )  # fmt: skip
    if samples.embeddings is not None:
        layers = layers | {str(layer): samples.embeddings}  # one copy in memory, not two
    return Generation(
        row["query_id"],
        samples,
        layers=layers,
        answer_layers=judged,
        prompt_layers=prompt,
        **{k: row[k] for k in kept},
    )
