"""The plain data that flows through fusevlm.

A *query* is an image and a question; a *sample* one sampled answer; the *answer* the one that is
judged; a *generation* all a model returned for one query; a *meaning* a group of samples that say
the same; a *unit* the queries that are resampled together. :class:`Queries` is the one table of
them, from the data stage to the figures.

Axis names: N queries, n samples of one query, d features of a hidden state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from fusevlm import checks, responses
from fusevlm.checks import BoolArray, FloatArray, IntArray, whole_text
from fusevlm.displays import Displayed
from fusevlm.errors import InputError
from fusevlm.meanings import best_sample, strings

MOST_SHOWN = 5  # different samples in a display
GRAIN, TELLING = 1e-6, 32  # of a log-probability in single precision; bits that tell queries apart


@dataclass(frozen=True, eq=False)
class Samples(Displayed):
    """What a model said to one query: n samples, and the answer to be judged.

    texts             n strings; none of them where nothing was sampled, and the answer is all
    token_logprobs    n sequences of token log-probabilities at temperature 1, EOS included; or None
    embeddings        [n, d] hidden states of the samples, in the precision they come in; or None
    answer            the answer that will be shown and judged (greedy); or None
    answer_logprobs   its token log-probabilities at temperature 1, EOS included; or None
    gram              [n, n] whitened Gram matrix kept instead of the embeddings; or None
    gram_dim          the dimension d in which it was whitened
    answer_margins    log p(best) − log p(second best token) at temperature 1 of each step of the
                      judged answer, EOS included; or None
    answer_is_sample  whether the answer was chosen among the samples for want of another: see below
    grams             Gram matrices [n, n] of the hidden states, kept instead of them, by what was
                      done to the states before; each with the dimension it was made in

    Leave out what the model does not give: scoring says which evidence it had to do without. Where
    ``token_logprobs`` come without an answer, the likeliest sample of the most frequent meaning is
    the answer (:func:`fusevlm.meanings.best_sample`), with its own log-probabilities; labels must
    then be of that one. :meth:`from_openai`, :meth:`from_vllm` and :meth:`from_hf` read what those
    return. Arrays are copied and read-only: to change something, make another one
    (dataclasses.replace).
    """

    texts: Sequence[str]
    token_logprobs: Sequence[Any] | None = field(default=None, repr=False)
    embeddings: Any = field(default=None, repr=False)
    answer: str | None = None
    answer_logprobs: Any = field(default=None, repr=False)
    gram: Any = field(default=None, repr=False)
    gram_dim: int | None = field(default=None, repr=False)
    answer_margins: Any = field(default=None, repr=False)
    answer_is_sample: bool = False
    grams: Mapping[str, tuple[Any, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        n = len(strings(self.texts))
        if n == 0 and self.answer is None:
            raise InputError("texts is empty; expected at least one sample, or answer='…'.")
        _set(self, texts=tuple(map(whole_text, self.texts)))
        if self.answer is not None:
            _set(self, answer=whole_text(str(self.answer)))
        for name in ("token_logprobs", "embeddings", "gram"):
            if n == 0 and getattr(self, name) is not None and not len(getattr(self, name)):
                _set(self, **{name: None})  # there is nothing to know of no samples
        if self.token_logprobs is not None:
            if len(self.token_logprobs) != n:
                raise InputError(
                    f"token_logprobs has {len(self.token_logprobs)} entries for {n} texts; "
                    f"expected one sequence of token log-probabilities per text."
                )
            checked = tuple(
                _logprobs(row, f"token_logprobs[{i}]") for i, row in enumerate(self.token_logprobs)
            )
            _set(self, token_logprobs=checked)
        if self.embeddings is not None:
            rows = checks.states(self.embeddings, "embeddings")
            if len(rows) != n:
                raise InputError(
                    f"embeddings has {len(rows)} rows for {n} texts; expected one row per text."
                )
            _set(self, embeddings=_frozen(rows))
        if self.gram is not None:
            G = checks.matrix(self.gram, "gram")
            if G.shape != (n, n) or self.gram_dim is None:
                raise InputError(
                    f"gram has shape {G.shape} and gram_dim {self.gram_dim} for {n} texts; "
                    f"expected ({n}, {n}) and the dimension it was whitened in."
                )
            _set(self, gram=_frozen(G))
        if self.grams:
            _set(self, grams={name: _gram(name, n, *own) for name, own in self.grams.items()})
        unknown = self.answer is None and self.answer_logprobs is None
        if unknown and self.answer_margins is None and self.token_logprobs is not None:
            best = best_sample(self.texts, self.token_logprobs)
            _set(self, answer=self.texts[best], answer_is_sample=True)
            _set(self, answer_logprobs=self.token_logprobs[best])
        if self.answer_logprobs is not None:
            _set(self, answer_logprobs=_logprobs(self.answer_logprobs, "answer_logprobs"))
        if self.answer_margins is not None:
            _set(self, answer_margins=_margins(self.answer_margins, self.answer_logprobs))

    @classmethod
    def from_openai(cls, response: Any, **known: Any) -> Samples:
        """Of a chat completion (or a plain one) with ``n`` choices: an object, or its JSON.

        Ask with ``logprobs=True``; servers leave EOS out of them. Of servers that ignore ``n``, a
        list of responses to the one query. ``known`` are further fields, such as ``answer``.
        """
        texts, logprobs = responses.of_openai(response)
        return cls(texts, logprobs, **known)

    @classmethod
    def from_vllm(cls, output: Any, **known: Any) -> Samples:
        """Of one RequestOutput of ``llm.generate`` with ``SamplingParams(n=…, logprobs=0)``.

        ``known`` are further fields, such as ``answer``.
        """
        texts, logprobs = responses.of_vllm(output)
        return cls(texts, logprobs, **known)

    @classmethod
    def from_hf(
        cls,
        output: Any,
        tokenizer: Any,
        *,
        prompt_length: int | None = None,
        eos: int | Sequence[int] | None = None,
        rows: slice = slice(None),
        **known: Any,
    ) -> Samples:
        """Of ``model.generate(…, num_return_sequences=n, return_dict_in_generate=True)``.

        With ``output_logits=True`` there are log-probabilities too; the ``scores`` are those after
        temperature and cuts, and are not read. ``tokenizer`` may be a processor that has one.

        prompt_length  tokens before the answer (default: those that have no logits)
        eos            what ends an answer (default: the tokenizer's)
        rows           those of this query, where several were generated together
        known          further fields, such as ``answer``
        """
        texts, logprobs = responses.of_hf(output, tokenizer, prompt_length, eos, rows)
        return cls(texts, logprobs, **known)

    def __len__(self) -> int:
        return len(self.texts)

    def has(self, attribute: str) -> bool:
        """Whether ``attribute`` is known; ``texts``: whether there are any samples."""
        return len(self) > 0 if attribute == "texts" else getattr(self, attribute) is not None

    @property
    def n_distinct(self) -> int:
        """How many different texts were sampled."""
        return len(set(self.texts))

    @property
    def fingerprint(self) -> int | None:
        """64 bits of texts and log-probabilities; None where those do not tell queries apart.

        Many are answered "yes", "yes", "yes", and with the same log-probabilities too: near
        certainty a model in single precision has few of them, so that they hold few bits.
        """
        rows = [*(self.token_logprobs or ())]
        rows += [] if self.answer_logprobs is None else [self.answer_logprobs]
        numbers = np.unique(np.concatenate(rows)) if rows else np.zeros(0)
        if np.log2(1.0 + np.abs(numbers) / GRAIN).sum() < TELLING:
            return None
        texts = "\0".join(self.texts).encode(errors="surrogatepass")
        digest = blake2b(b"".join([texts, *(row.tobytes() for row in rows)]), digest_size=8)
        return int.from_bytes(digest.digest(), "little", signed=True)

    def first(self, n: int) -> Samples:
        """The first n samples, the judged answer unchanged."""
        if n > len(self):
            raise InputError(f"{n} samples are wanted of a query that has {len(self)}.")

        def cut(value: Any) -> Any:
            return None if value is None else value[:n]

        return replace(
            self,
            texts=self.texts[:n],
            token_logprobs=cut(self.token_logprobs),
            embeddings=cut(self.embeddings),
            gram=None if self.gram is None else self.gram[:n, :n],
            grams={name: (G[:n, :n], d) for name, (G, d) in self.grams.items()} if n else {},
        )

    def _title(self) -> str:
        return f"{len(self)} samples, {self.n_distinct} of them different"

    def _facts(self) -> dict[str, str]:
        said = Counter(self.texts).most_common(MOST_SHOWN)
        rest = self.n_distinct - len(said)
        names = {"token_logprobs": "log-probabilities", "embeddings": "hidden states"}
        there = [words for name, words in names.items() if self.has(name)]
        answer = "none" if self.answer is None else self.answer
        return {
            "answer": answer + " (one of the samples)" * self.answer_is_sample,
            "samples": ", ".join(f"{count} × {text or '(nothing)'}" for text, count in said)
            + f", {rest} others" * bool(rest),
            "with": ", ".join(there) or "texts alone",
        }


def _gram(name: str, n: int, matrix: Any, d: int) -> tuple[FloatArray, int]:
    G = checks.matrix(matrix, f"grams[{name!r}]")
    if G.shape != (n, n):
        raise InputError(f"grams[{name!r}] has shape {G.shape} for {n} texts; expected ({n}, {n}).")
    return _frozen(G), int(d)


def _set(instance: Any, **values: Any) -> None:
    """Store validated values on a frozen dataclass while it is being made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _logprobs(value: Any, name: str) -> FloatArray:
    array = checks.as_floats(value, name)
    if array.ndim != 1 or array.size == 0:
        raise InputError(
            f"{name} has shape {array.shape}; expected at least one token log-probability. "
            f"Keep the EOS token's, so that an empty response has one too."
        )
    checks.finite(array, name)
    if float(array.max()) > 1e-6:
        raise InputError(
            f"{name} holds {array.max():g}; log-probabilities are at most 0. "
            f"Pass log-softmax values, not raw logits or probabilities."
        )
    return _frozen(np.minimum(array, 0.0))


def _margins(value: Any, logprobs: FloatArray | None) -> FloatArray:
    array = checks.as_floats(value, "answer_margins")
    size = array.size if logprobs is None else len(logprobs)
    if array.shape != (size,) or not size:
        raise InputError(
            f"answer_margins has shape {array.shape} for {size} answer_logprobs; expected one "
            f"margin per token, EOS included."
        )
    checks.finite(array, "answer_margins")
    if float(array.min()) < -1e-6:
        raise InputError(
            f"answer_margins holds {array.min():g}; the best token's log-probability is never "
            f"below the second best's: expected 0 or more."
        )
    return _frozen(np.maximum(array, 0.0))


def _frozen(array: Any) -> np.ndarray[Any, Any]:
    """A read-only copy."""
    own = np.array(array)
    own.flags.writeable = False
    return own


@dataclass(frozen=True, eq=False)
class Query(Displayed):
    """One question about one or more images.

    id          its name, unique among the queries it is used with
    question    what is asked
    images      paths, bytes or PIL images, in the order in which the prompt shows them
    history     earlier turns as (role, text), oldest first; roles are "user" and "assistant"
    references  right answers, where they are known
    metadata    anything else worth keeping with the results (split, answer type, image id, …)

    Texts are of whole characters: halves of one are replaced (:func:`fusevlm.checks.whole_text`).
    """

    id: str
    question: str
    images: Sequence[Any] = ()
    history: Sequence[tuple[str, str]] = ()
    references: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InputError(f"a query's id must be a non-empty string; got {self.id!r}.")
        if not isinstance(self.question, str):
            raise InputError(f"query {self.id!r}: question must be a string.")
        for turn in self.history:
            if len(turn) != 2 or turn[0] not in ("user", "assistant"):
                raise InputError(
                    f"query {self.id!r}: history holds {turn!r}; expected (role, text) pairs with "
                    f"role 'user' or 'assistant'."
                )
        _set(
            self,
            id=whole_text(self.id),
            question=whole_text(self.question),
            history=tuple((role, whole_text(str(text))) for role, text in self.history),
            references=tuple(whole_text(str(text)) for text in self.references),
            metadata={k: whole_text(v) if isinstance(v, str) else v
                      for k, v in self.metadata.items()},
        )  # fmt: skip

    def _title(self) -> str:
        return f"query {self.id}"

    def _facts(self) -> dict[str, str]:
        known = {"references": self.references, **{k: [v] for k, v in self.metadata.items()}}
        return {
            "id": self.id,
            "question": self.question,
            "images": str(len(self.images)),
            **{name: ", ".join(map(str, values)) for name, values in known.items() if values},
        }


@dataclass(frozen=True, eq=False)
class Generation(Displayed):
    """What came of one query: its samples and how they were made, or the error that stopped it.

    query_id          id of the query
    samples           what was said; None where it failed
    error             why it failed; None where it did not
    passing           of an error: the same query may be answered another time
    refused           of an error: it is the query itself that cannot be asked
    token_ids         of each sample, without EOS
    warped_logprobs   of each sample's tokens, at the temperature it was drawn at
    temperatures      of each sample
    truncated         of each sample: ended by the token limit, not by EOS or a stop string
    answer_token_ids  of the judged answer
    layers            [n, d] hidden state of each sample's last response token, by layer name
    answer_layers     [d] that of the judged answer
    prompt_layers     [d] that of the last prompt token, before anything was said
    prompt_tokens     how long the prompt was, pictures included
    path              how the prompt's cache was used: shared_prefix or repeated_cache
    n_near_boundary   draws that another batch layout might decide otherwise
    """

    query_id: str
    samples: Samples | None = None
    error: str | None = None
    passing: bool = False
    refused: bool = False
    token_ids: Sequence[Sequence[int]] = ()
    warped_logprobs: Sequence[Sequence[float]] = ()
    temperatures: Sequence[float] = ()
    truncated: Sequence[bool] = ()
    answer_token_ids: Sequence[int] = ()
    layers: Mapping[str, Any] = field(default_factory=dict)
    answer_layers: Mapping[str, Any] = field(default_factory=dict)
    prompt_layers: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0
    path: str = ""
    n_near_boundary: int = 0

    def _title(self) -> str:
        return f"generation of query {self.query_id}"

    def _facts(self) -> dict[str, str]:
        said = {} if self.samples is None else self.samples._facts()
        states = {"hidden states of": ", ".join(self.layers)} if self.layers else {}
        return {**said, **states, **({} if self.error is None else {"error": self.error})}


@dataclass(frozen=True, eq=False)
class Semantics:
    """What is known of the samples of one query beyond themselves; None where it was not asked for.

    meanings     [n] samples with the same number say the same
    between      [n+1, n+1] similarities in [0, 1] of the samples and, last, the judged answer
    rephrasings  did the answer to each rephrased question agree with the judged answer
    p_true       the model's own probability that the judged answer is right
    complement   share of the answers to the negated question that fail to flip, or their
                 probability; None for questions that are not yes/no
    """

    meanings: IntArray | None = None
    between: FloatArray | None = None
    rephrasings: BoolArray | None = None
    p_true: float | None = None
    complement: float | None = None

    @property
    def similarity(self) -> FloatArray | None:
        """[n, n] between the samples."""
        return None if self.between is None else self.between[:-1, :-1]

    @property
    def answer_similarity(self) -> FloatArray | None:
        """[n] of each sample to the judged answer."""
        return None if self.between is None else self.between[-1, :-1]

    def first(self, n: int) -> Semantics:
        """Of the first n samples."""
        between = self.between
        if between is not None:
            keep = [*range(n), len(between) - 1]
            between = between[np.ix_(keep, keep)]
        meanings = None if self.meanings is None else self.meanings[:n]
        return replace(self, meanings=meanings, between=between)


@dataclass(frozen=True, eq=False, repr=False)
class Queries(Displayed):
    """N queries and all that is known of them: the one table from the data stage to the figures.

    ids            names, unique
    samples        what the model said to each
    wrong          [N] was the judged answer wrong; None without labels
    prior          prior statistics by name, [N] each: from the input alone
    evidence       further evidence by name, [N] each, larger = less sure; NaN: not asked of it
    inputs         embeddings of the inputs by name, [N, D] each
    views          how the inputs look, by name, [N, D] or texts: what novelty is judged by
    columns        anything else by name, one entry per query: metadata, scores
    units          [N] names; queries of one unit are resampled together (default: each its own)
    fit            rows of the calibration queries, whose labels methods may read; None: not split
    references     right answers of each
    semantics      meanings, similarities, rephrasings, P(True) and complement of each
    states         hidden states of further layers by name, [n, d] of each query
    answer_states  hidden states of the judged answers by layer, [N, d] each; scores read the first
    sample_wrong   was each sample wrong, [n] of each query; read only at ``fit``
    """

    ids: Sequence[str]
    samples: Sequence[Samples]
    wrong: Any = None
    prior: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    views: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    units: Sequence[str] | None = None
    fit: Any = None
    references: Sequence[Sequence[str]] | None = None
    semantics: Sequence[Semantics] | None = None
    states: Mapping[str, Sequence[FloatArray]] = field(default_factory=dict)
    sample_wrong: Sequence[BoolArray] | None = None
    answer_states: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        N = len(self.ids)
        if N == 0:
            raise InputError("there are no queries; expected at least one.")
        _set(self, ids=tuple(map(str, self.ids)))
        if len(set(self.ids)) < N:
            raise InputError("two queries have the same id; ids must be unique.")
        _set(self, units=self.ids if self.units is None else tuple(map(str, self.units)))
        for name in ("samples", "units", "references", "semantics", "sample_wrong"):
            value = getattr(self, name)
            if value is not None:
                _one_each(value, name, N)
                _set(self, **{name: tuple(value)})
        for name, values in {**self.columns, **self.states}.items():
            _one_each(values, name, N)
        if self.wrong is not None:
            _set(self, wrong=checks.labels(self.wrong, length=N))
        for kind in ("prior", "evidence"):
            given = {
                name: checks.vector(values, f"{kind} {name!r}", length=N, gaps=kind == "evidence")
                for name, values in getattr(self, kind).items()
            }
            _set(self, **{kind: given})
        for kind in ("inputs", "views", "answer_states"):
            for name, rows in getattr(self, kind).items():
                _one_each(rows, f"{kind} {name!r}", N)
        if self.fit is not None:
            _set(self, fit=_rows(self.fit, N))

    def __len__(self) -> int:
        return len(self.ids)

    def _title(self) -> str:
        return f"{len(self)} queries"

    def _facts(self) -> dict[str, str]:
        share = None if self.wrong is None else float(np.mean(self.wrong))
        names = {kind: ", ".join(getattr(self, kind)) for kind in ("prior", "evidence", "inputs")}
        shown = {kind: text for kind, text in names.items() if text}
        return {"wrong": "unknown" if share is None else f"{share:.1%}", **shown}

    @property
    def s(self) -> FloatArray:
        """The prior statistic named "s", or the only one [N]."""
        if "s" in self.prior:
            return np.asarray(self.prior["s"])
        if len(self.prior) != 1:
            raise InputError(
                f"s is the prior statistic of that name or the only one, but these queries have "
                f"{len(self.prior)}"
                f"{': ' * bool(self.prior)}{', '.join(self.prior)}. Name one: queries.prior[name]."
            )
        (found,) = self.prior.values()
        return np.asarray(found)

    def take(self, index: Any) -> Queries:
        """Some rows as a table of their own, without ``fit``."""
        rows = [int(i) for i in np.arange(len(self))[index]]

        def some(values: Any) -> Any:
            if values is None:
                return None
            return values[rows] if isinstance(values, np.ndarray) else [values[i] for i in rows]

        changes = {
            name: some(getattr(self, name))
            for name in (
                "ids", "samples", "wrong", "units", "references", "semantics", "sample_wrong",
            )
        }  # fmt: skip
        for kind in (
            "prior", "evidence", "inputs", "views", "columns", "states", "answer_states",
        ):  # fmt: skip
            changes[kind] = {name: some(values) for name, values in getattr(self, kind).items()}
        return Queries(**changes)

    def split(self) -> tuple[Queries, Queries]:
        """The calibration queries and the others."""
        if self.fit is None:
            raise InputError("these queries are not divided into calibration and test.")
        return self.take(self.fit), self.take(self.test)

    @property
    def test(self) -> IntArray:
        """Rows that are not calibration queries."""
        return np.setdiff1d(np.arange(len(self)), [] if self.fit is None else self.fit)

    def first(self, n: int) -> Queries:
        """The same queries with their first n samples: subsamples are nested."""

        def cut(rows: Any) -> Any:
            return None if rows is None else [row[:n] for row in rows]

        return replace(
            self,
            samples=[q.first(n) for q in self.samples],
            semantics=None if self.semantics is None else [m.first(n) for m in self.semantics],
            states={name: cut(rows) for name, rows in self.states.items()},
            sample_wrong=cut(self.sample_wrong),
        )

    def column(self, name: str, named_by: str) -> Any:
        """A column, or an error that says who named it, and the nearest."""
        if name not in self.columns:
            raise InputError(
                f"{named_by} names the column {name!r}, which the queries do not have."
                f"{checks.hint(name, self.columns)}"
            )
        return self.columns[name]

    def has(self, attribute: str) -> bool:
        """Whether the samples of all queries carry ``attribute``; a mixture is an error."""
        present = [q.has(attribute) for q in self.samples]
        if any(present) and not all(present):
            raise InputError(
                f"query {present.index(False)} has no {attribute} but others do; "
                f"give it for all queries or for none."
            )
        return all(present)


def _one_each(values: Any, name: str, size: int) -> None:
    if len(values) != size:
        raise InputError(f"{name} has {len(values)} entries for {size} queries; expected one each.")


def _rows(value: Any, size: int) -> IntArray:
    rows = np.asarray(value)
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise InputError("fit must be a non-empty list of row numbers.")
    if rows.min() < 0 or rows.max() >= size:
        raise InputError(f"fit holds {rows.min()}…{rows.max()}; expected rows in 0…{size - 1}.")
    if len(np.unique(rows)) < len(rows):
        raise InputError("fit names a query twice; expected each calibration query once.")
    return rows.astype(np.int64)
