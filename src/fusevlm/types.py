"""The plain data that flows through fusevlm.

Axis names: N queries, n sampled responses of one query, d features of a response embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from fusevlm.calibrate.thresholds import GroupThresholds, Threshold


@dataclass(frozen=True, eq=False)
class Samples:
    """What a model said to one query: n sampled responses, and the answer to be judged.

    texts            n response strings
    token_logprobs   n sequences of token log-probabilities at temperature 1, EOS included; or None
    embeddings       [n, d] hidden states of the responses; or None
    answer           the answer that will be shown and judged (greedy); or None
    answer_logprobs  its token log-probabilities at temperature 1, EOS included; or None
    gram             [n, n] whitened Gram matrix kept instead of the embeddings; or None
    gram_dim         the dimension d in which it was whitened

    Leave out what the model does not give: scoring says which evidence it had to do without.
    """

    texts: Sequence[str]
    token_logprobs: Sequence[Any] | None = None
    embeddings: Any = None
    answer: str | None = None
    answer_logprobs: Any = None
    gram: Any = None
    gram_dim: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.texts, str) or not all(isinstance(t, str) for t in self.texts):
            raise InputError("texts must be a list of strings, one per sampled response.")
        n = len(self.texts)
        if n == 0:
            raise InputError("texts is empty; expected at least one sampled response.")
        _set(self, texts=tuple(self.texts))
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
            rows = checks.matrix(self.embeddings, "embeddings")
            if len(rows) != n:
                raise InputError(
                    f"embeddings has {len(rows)} rows for {n} texts; expected one row per text."
                )
            _set(self, embeddings=rows)
        if self.gram is not None:
            G = checks.matrix(self.gram, "gram")
            if G.shape != (n, n) or self.gram_dim is None:
                raise InputError(
                    f"gram has shape {G.shape} and gram_dim {self.gram_dim} for {n} texts; "
                    f"expected ({n}, {n}) and the dimension it was whitened in."
                )
            _set(self, gram=G)
        if self.answer_logprobs is not None:
            _set(self, answer_logprobs=_logprobs(self.answer_logprobs, "answer_logprobs"))

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def n_distinct(self) -> int:
        """How many different texts were sampled."""
        return len(set(self.texts))


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
    return np.minimum(array, 0.0)


@dataclass(frozen=True, eq=False)
class Query:
    """One question about one or more images.

    images      paths, bytes or PIL images, in the order in which the prompt shows them
    history     earlier turns as (role, text), oldest first; roles are "user" and "assistant"
    references  right answers, where they are known
    metadata    anything else worth keeping with the results (split, answer type, image id, …)
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


@dataclass(frozen=True, eq=False)
class Generation:
    """What came of one query: its samples and how they were made, or the error that stopped it.

    Per sample (n entries): token_ids without EOS, warped_logprobs (at the sampling temperature),
    temperatures, truncated (ended by the token limit, not by EOS or a stop string).
    ``layers`` holds the hidden state [n, d] of each sample's last response token, by layer name;
    ``answer_layers`` [d] that of the judged answer.
    """

    query_id: str
    samples: Samples | None = None
    error: str | None = None
    token_ids: Sequence[Sequence[int]] = ()
    warped_logprobs: Sequence[Sequence[float]] = ()
    temperatures: Sequence[float] = ()
    truncated: Sequence[bool] = ()
    answer_token_ids: Sequence[int] = ()
    layers: Mapping[str, Any] = field(default_factory=dict)
    answer_layers: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0
    path: str = ""  # how the prompt's cache was used: shared_prefix or repeated_cache
    n_near_boundary: int = 0  # draws that another batch layout might decide otherwise


@dataclass(frozen=True, eq=False)
class Scores:
    """Per-query results; every array has one entry per query.

    m_post and sigma_post follow from the other columns by one update (:mod:`fusevlm.maths.fusion`):
    the evidence is N(intercept + slope·u, tau2) and the prior N(m0, sigma0²). For the ``paper``
    preset evidence is Ṽ and slope is n; for ``practical`` it is the reduced vector, slope 1.
    """

    m0: FloatArray
    sigma0: FloatArray
    evidence: FloatArray
    intercept: FloatArray
    slope: FloatArray
    tau2: FloatArray
    m_post: FloatArray
    sigma_post: FloatArray
    u: FloatArray
    prior_weight: FloatArray
    n_samples: IntArray
    n_distinct: IntArray
    out_of_range: BoolArray  # s or the evidence lies outside the calibration range
    jitter: FloatArray  # absolute, added before the weights; NaN where no log-det was taken
    parts: Mapping[str, FloatArray] = field(default_factory=dict)  # raw evidence by name
    shares: Mapping[str, FloatArray] = field(default_factory=dict)  # its share of the precision

    def __len__(self) -> int:
        return len(self.u)

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All columns by name, the named evidence as ``evidence_NAME`` and ``share_NAME``."""
        flat = {f.name: getattr(self, f.name) for f in fields(self)}
        parts, shares = flat.pop("parts"), flat.pop("shares")
        flat |= {f"evidence_{name}": values for name, values in parts.items()}
        flat |= {f"share_{name}": values for name, values in shares.items()}
        return flat

    def to_pandas(self) -> pd.DataFrame:
        """One row per query as a pandas DataFrame (extra ``frames``)."""
        frames = checks.extra("pandas", "to_pandas()", "frames")
        table: pd.DataFrame = frames.DataFrame(self.columns())
        return table

    def to_arrow(self) -> pa.Table:
        """One row per query as an Arrow table (extra ``frames``)."""
        return checks.extra("pyarrow", "to_arrow()", "frames").table(self.columns())


@dataclass(frozen=True, eq=False)
class Decisions:
    """Answer or abstain, per query, and the rule that decided."""

    answer: BoolArray  # True: answer; False: abstain
    u: FloatArray
    threshold: Threshold | GroupThresholds

    @property
    def abstain(self) -> BoolArray:
        return ~self.answer

    @property
    def coverage(self) -> float:
        """Share of these queries that is answered."""
        return float(np.mean(self.answer))
