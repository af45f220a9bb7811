"""Natural-language inference over the samples of many queries: meanings and similarities.

The question is put before each sample. Equal texts are never compared; a pair that several
queries share is judged once; all queries take their steps together so that batches are full; pairs
of like length share a batch; what is judged can be kept on disk (:mod:`fusevlm.store.cache`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.models.devices import need_device
from fusevlm.semantics.strings import greedy
from fusevlm.store.cache import Pair, PairCache

logger = logging.getLogger(__name__)

DEFAULT_NLI = "microsoft/deberta-large-mnli"
TRANSACTION = 512  # pairs judged before they are kept: at most so many are lost in a crash
STEP = 16  # tokens by which the batches of longer pairs are longer
RELATIONS = ("contradiction", "neutral", "entailment")
# what each relation adds: the first two are Lin et al. (2024); KLE weighs entailment and neutral
SIMILARITIES: dict[str, tuple[float, float, float]] = {
    "entailment": (0.0, 0.0, 1.0),
    "no_contradiction": (0.0, 1.0, 1.0),
    "graded": (0.0, 0.5, 1.0),
}


class Judge(Protocol):
    """Anything that tells how a hypothesis follows from a premise."""

    @property
    def name(self) -> str:
        """Names the model and its version; judged pairs are kept under it."""
        ...

    def judge(self, pairs: Sequence[Pair]) -> FloatArray:
        """P(contradiction), P(neutral), P(entailment) of each (premise, hypothesis): [P, 3]."""
        ...


@dataclass(frozen=True)
class Counts:
    """Ordered pairs, from what a plain double loop would judge to what the model had to."""

    all_pairs: int  # Σ n(n−1) over queries
    distinct: int  # different pairs of different texts among them
    asked: int  # of those, what the method needed
    judged: int  # of those, what was not in the cache


@dataclass(frozen=True, eq=False)
class Meanings:
    """Meanings [n] of each query's samples, and what they cost."""

    numbers: list[IntArray]
    counts: Counts


@dataclass(frozen=True, eq=False)
class Similarities:
    """Symmetric similarities [n, n] in [0, 1] of each query's samples, and what they cost."""

    matrices: list[FloatArray]
    counts: Counts


def find_meanings(
    judge: Judge,
    questions: Sequence[str],
    samples: Sequence[Sequence[str]],
    *,
    strict: bool = True,
    cache: PairCache | None = None,
) -> Meanings:
    """``by_entailment`` of every query, asking only what the greedy grouping needs.

    All queries advance together: in each round the open pairs of all of them are judged at once.
    """
    texts = _asked_texts(questions, samples)
    numbers: list[IntArray] = [np.zeros(0, dtype=np.int64)] * len(texts)
    running = dict(enumerate(greedy(rows, strict=strict) for rows in texts))
    relations: dict[Pair, int] = {}
    waiting: dict[int, Pair] = {}
    n_judged = 0
    while running:
        for q, steps in list(running.items()):
            try:
                pair = steps.send(relations[waiting[q]]) if q in waiting else next(steps)
                while pair in relations:
                    pair = steps.send(relations[pair])
                waiting[q] = pair
            except StopIteration as end:
                numbers[q] = end.value
                del running[q]
        found, new = judge_pairs(judge, (waiting[q] for q in running), cache)
        relations |= {pair: int(p.argmax()) for pair, p in found.items()}
        n_judged += new
    return Meanings(numbers, _count(texts, len(relations), n_judged))


def nli_similarity(
    judge: Judge,
    questions: Sequence[str],
    samples: Sequence[Sequence[str]],
    *,
    kind: str = "entailment",
    cache: PairCache | None = None,
) -> Similarities:
    """Similarities for graph scores: the weighted probabilities, averaged over both directions.

    ``kind`` is ``entailment`` (P(entailment)), ``no_contradiction`` (1 − P(contradiction)) or
    ``graded`` (P(entailment) + P(neutral)/2). Equal texts have similarity 1. All ordered pairs of
    different texts are judged.
    """
    weights = np.array(SIMILARITIES[checks.choice(kind, "kind", tuple(SIMILARITIES))])
    texts = _asked_texts(questions, samples)
    pairs = _distinct_pairs(texts)
    found, new = judge_pairs(judge, pairs, cache)
    value = {pair: float(p @ weights) for pair, p in found.items()}
    matrices = [
        np.array([[1.0 if a == b else (value[a, b] + value[b, a]) / 2 for b in row] for a in row])
        for row in texts
    ]
    return Similarities(matrices, _count(texts, len(pairs), new))


def judge_pairs(
    judge: Judge, pairs: Iterable[Pair], cache: PairCache | None = None
) -> tuple[dict[Pair, FloatArray], int]:
    """Probabilities [3] of each distinct pair, and how many of them the judge had to look at."""
    wanted = dict.fromkeys(pairs)
    found = {} if cache is None else cache.find(judge.name, wanted)
    new = sorted(wanted.keys() - found.keys(), key=lambda pair: (len(pair[0] + pair[1]), pair))
    for start in range(0, len(new), TRANSACTION):
        part = new[start : start + TRANSACTION]
        judged = dict(zip(part, _probabilities(judge, part), strict=True))
        if cache is not None:
            cache.add(judge.name, judged)
        found |= judged
    return found, len(new)


class NliModel:
    """A sequence classifier of transformers that was trained for inference in three classes."""

    def __init__(self, model: Any, tokenizer: Any, *, name: str = "", batch: int = 16) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.batch = checks.count(batch, "batch")
        self.order = relation_order(model.config.id2label)
        # RoBERTa's config counts two positions more than it takes; its tokenizer knows
        places = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
        self.limit = min(int(places), int(tokenizer.model_max_length))
        version = getattr(model.config, "_commit_hash", None) or _fingerprint(model)
        self._name = f"{name or model.config.model_type}@{version}, classes {self.order}"

    @classmethod
    def load(
        cls,
        source: str = DEFAULT_NLI,
        *,
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "auto",
    ) -> NliModel:
        """A local folder or hub name of a model for inference (MNLI or alike)."""
        transformers = checks.extra("transformers", "an NLI model", "torch")
        need_device(device)
        try:
            model = transformers.AutoModelForSequenceClassification.from_pretrained(
                source, revision=revision, dtype=dtype
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, revision=revision)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot load {source!r} as an NLI model: {error}") from error
        return cls(model.to(device), tokenizer, name=source)

    @property
    def name(self) -> str:
        return self._name

    def judge(self, pairs: Sequence[Pair]) -> FloatArray:
        """Softmax over the classes [P, 3]; pairs of like length share a batch.

        Every batch has as many rows, and as many tokens as its own pairs need in steps of
        :data:`STEP`: sums are then made in one order for a pair, whatever it is judged with, so
        that it gets the same number in any part of a run and from any worker.
        """
        checks.extra("torch", "an NLI model", "torch")
        from fusevlm.models.turns import turn

        with turn(self.model):
            return self._judge(pairs)

    def _judge(self, pairs: Sequence[Pair]) -> FloatArray:
        import torch

        lengths = [len(ids) for ids in self.tokenizer([*map(list, pairs)])["input_ids"]]
        n_cut = sum(length > self.limit for length in lengths)
        if n_cut:
            logger.warning("%d pairs are longer than %d tokens and are cut.", n_cut, self.limit)
        width = np.array([min(self.limit, -(-length // STEP) * STEP) for length in lengths])
        found = np.empty((len(pairs), len(RELATIONS)))
        for tokens in np.unique(width):
            own = np.flatnonzero(width == tokens)
            for start in range(0, len(own), self.batch):
                rows = own[start : start + self.batch]
                filled = [*rows, *[rows[-1]] * (self.batch - len(rows))]
                inputs = self.tokenizer(
                    [list(pairs[i]) for i in filled], padding="max_length", truncation=True,
                    max_length=int(tokens), return_tensors="pt",
                ).to(self.model.device)  # fmt: skip
                with torch.inference_mode():
                    logits = self.model(**inputs).logits[: len(rows)]
                found[rows] = logits.double().softmax(dim=-1)[:, list(self.order)].cpu().numpy()
        return found


def relation_order(id2label: Mapping[int, str]) -> tuple[int, int, int]:
    """The classes that are contradiction, neutral and entailment, by the names in the config."""
    label = {name.lower(): int(k) for k, name in id2label.items()}
    if sorted(label) != sorted(RELATIONS):
        raise InputError(
            f"the model's classes are {', '.join(map(repr, id2label.values()))}; expected "
            f"contradiction, neutral and entailment in any order. Take a model trained on MNLI, or "
            f"name the classes in model.config.id2label."
        )
    return label["contradiction"], label["neutral"], label["entailment"]


def _asked_texts(questions: Sequence[str], samples: Sequence[Sequence[str]]) -> list[list[str]]:
    """Each sample with its question before it."""
    if len(questions) != len(samples):
        raise InputError(
            f"{len(questions)} questions for the samples of {len(samples)} queries; "
            f"expected one question per query."
        )
    return [
        [f"{question} {text}" for text in row]
        for question, row in zip(questions, samples, strict=True)
    ]


def _pairs(texts: Sequence[str]) -> Iterator[Pair]:
    """All ordered pairs of different texts."""
    different = dict.fromkeys(texts)
    return ((a, b) for a in different for b in different if a != b)


def _distinct_pairs(texts: Sequence[Sequence[str]]) -> set[Pair]:
    return {pair for row in texts for pair in _pairs(row)}


def _count(texts: Sequence[Sequence[str]], asked: int, judged: int) -> Counts:
    plain = sum(len(row) * (len(row) - 1) for row in texts)
    return Counts(plain, len(_distinct_pairs(texts)), asked, judged)


def _probabilities(judge: Judge, pairs: Sequence[Pair]) -> FloatArray:
    found = checks.matrix(judge.judge(pairs), "the judge's probabilities")
    if found.shape != (len(pairs), len(RELATIONS)):
        raise InputError(
            f"{judge.name} returned shape {found.shape} for {len(pairs)} pairs; expected one row "
            f"per pair: P(contradiction), P(neutral), P(entailment)."
        )
    return found


def _fingerprint(model: Any) -> str:
    """A digest of the weights, for a model without a hub revision."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()[:16]
