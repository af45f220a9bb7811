"""What the trained models can do, on images they have not seen: the numbers of the model card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from factory import models, packing
from factory.models import INSTRUCTION
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.data.pictures import CLEAN, CORRUPTIONS, SEVERITIES, as_image, corrupt
from fusevlm.data.questions import by_kind, draw, make_query, package_questions
from fusevlm.data.questions import derived_questions as derived
from fusevlm.data.scenes import COLORS, SHAPES, Scene, read_pixels
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.towers import Towers
from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.types import Query, Samples

VIEWS = ((CLEAN, 0), *((c, s) for c in CORRUPTIONS for s in SEVERITIES))
BATCH = 64
SAMPLED = 8  # queries sampled together
KNOWN = "in distribution"


def is_right(model: Any, queries: Sequence[Query]) -> BoolArray:
    """Whether the greedy answer is exactly the reference, per query.

    Greedy decoding gives the reference if and only if every token of it (and EOS) is the likeliest
    after those before it, so one forward pass decides.
    """
    found = []
    for start in range(0, len(queries), BATCH):
        part = queries[start : start + BATCH]
        pixels = models.as_tensor(np.stack([np.asarray(q.images[0]) for q in part]))
        rows = [[packing.segment(q.question + INSTRUCTION, q.references[0])] for q in part]
        ids, labels = packing.pack(rows)
        with torch.inference_mode():
            features = packing.image_features(model, pixels)
            likeliest = packing.packed_logits(model, features, ids)[:, :, :-1].argmax(dim=3)
        target = labels[:, :, 1:]
        found.append(((likeliest == target) | (target < 0)).all(dim=2)[:, 0].numpy())
    return np.concatenate(found)


def means(values: FloatArray | BoolArray, groups: Sequence[Any]) -> dict[str, float]:
    """Mean of ``values`` in each group, with keys sorted."""
    return {name: part["mean"] for name, part in counted(values, groups).items()}


def counted(values: FloatArray | BoolArray, groups: Sequence[Any]) -> dict[str, Any]:
    """Mean of ``values`` and their number in each group, with keys sorted."""
    keys = np.array([str(g) for g in groups])
    found = {}
    for name in sorted(set(keys.tolist())):
        own = values[keys == name]
        found[name] = {"mean": round(float(np.mean(own)), 4), "n": len(own)}
    return found


def condition(query: Query) -> str:
    """What, apart from the picture's quality, is new about a query."""
    pair, phrasing = query.metadata["held_out_pair"], query.metadata["unseen_phrasing"]
    if pair and phrasing:
        return "both"
    return "held-out pair" if pair else "unseen phrasing" if phrasing else KNOWN


def accuracies(model: Any, queries: Sequence[Query]) -> dict[str, Any]:
    """Accuracy, with counts, over all queries and by what is known about them."""
    right = is_right(model, queries)
    facts = [q.metadata for q in queries]
    conditions = [condition(q) for q in queries]
    clean = np.array([f["severity"] == 0 for f in facts])
    plain = clean & np.array([c == KNOWN for c in conditions])
    kinds = np.array([f["kind"] for f in facts])
    found: dict[str, Any] = {
        "n": len(queries),
        "all": round(float(right.mean()), 4),
        "clean_in_distribution": round(float(right[plain].mean()), 4),
        "n_clean_in_distribution": int(plain.sum()),
        "clean_by_kind": counted(right[plain], kinds[plain].tolist()),
        "condition": counted(right, conditions),
        "clean_condition": counted(right[clean], np.array(conditions)[clean].tolist()),
    }
    for key in ("severity", "corruption", "answer_type", "source", "kind"):
        found[key] = counted(right, [f[key] for f in facts])
    return found


def distinct(backend: HuggingFace, queries: Sequence[Query], n: int = 10) -> dict[str, Any]:
    """Mean number of different answers among n samples at temperature 1.

    By severity (nothing else new about the query), and by condition (clean pictures). Queries to
    which it said nothing are left out.
    """
    found = list(_sampled(backend, queries, n))
    answered = [query for query, one in zip(queries, found, strict=True) if one is not None]
    values = np.array([float(one.n_distinct) for one in found if one is not None])
    level = np.array([q.metadata["severity"] for q in answered])
    named = np.array([condition(q) for q in answered])
    return {
        "severity": counted(values[named == KNOWN], level[named == KNOWN].tolist()),
        "clean_condition": counted(values[level == 0], named[level == 0].tolist()),
    }


def _sampled(backend: HuggingFace, queries: Sequence[Query], n: int) -> Iterator[Samples | None]:
    """Samples of each query; None where the model said nothing, as to some unseen phrasings."""
    for start in range(0, len(queries), SAMPLED):
        for generation in backend.sample(queries[start : start + SAMPLED], n, np.ones(n), 0):
            yield generation.samples


def returned(asker: HuggingFace, model: Any, queries: Sequence[Query]) -> dict[str, Any]:
    """How often the answerer gives back the answer that a generated question was made for.

    The generator sees a query's picture and its reference; its likeliest question is then put to
    the answerer with the same picture.
    """
    given = [replace(q, question=q.references[0]) for q in queries]
    written = ["" if one is None else one.answer or "" for one in _sampled(asker, given, 1)]
    again = [replace(q, question=text) for q, text in zip(queries, written, strict=True)]
    right = is_right(model, again)
    shown = range(0, len(queries), max(1, len(queries) // 8))
    return {
        "n": len(queries),
        "rate": round(float(right.mean()), 4),
        "n_questions": len(set(written)),
        "kind": counted(right, [q.metadata["kind"] for q in queries]),
        "examples": [[queries[i].references[0], written[i], bool(right[i])] for i in shown],
    }


def clean_queries(name: str, scenes: Sequence[Scene], seed: int = 0) -> list[Query]:
    """Clean pictures, for each one question of every seen kind and one in an unseen phrasing."""
    found = []
    for scene in scenes:
        rng = np.random.default_rng([seed, 1, *scene.seed])
        groups = [*by_kind([*package_questions(scene), *derived(scene)]).values()]
        for group in (*groups, derived(scene, unseen=True)):
            chosen = group[int(rng.integers(len(group)))]
            found.append(make_query(name, scene, chosen, CLEAN, 0))
    return found


def every_view(name: str, scenes: Sequence[Scene], seed: int = 0) -> list[Query]:
    """One question per scene, the same for all 26 views of its picture."""
    found = []
    for scene in scenes:
        rng = np.random.default_rng([seed, *scene.seed])
        chosen = draw(scene, rng)
        found += [make_query(name, scene, chosen, *view) for view in VIEWS]
    return found


def zero_shot(towers: Towers, scenes: Sequence[Scene], views: Any = VIEWS) -> dict[str, float]:
    """Share of pictures whose nearest of the 24 captions is right, by severity."""
    pairs = [(c, s) for c in COLORS for s in SHAPES]
    texts = towers.texts([f"{c} {s}" for c, s in pairs]).vectors
    truth = np.array([pairs.index((s.color, s.shape)) for s in scenes])
    pixels = read_pixels(scenes)
    right, severity = [], []
    for corruption, level in views:
        pictures = [
            as_image(corrupt(p, corruption, level, s.seed))
            for p, s in zip(pixels, scenes, strict=True)
        ]
        vectors = towers.images(pictures)
        right.append((vectors @ texts.T).argmax(axis=1) == truth)
        severity += [level] * len(scenes)
    return means(np.concatenate(right), severity)


def embed(towers: Towers, queries: Sequence[Query]) -> tuple[FloatArray, FloatArray]:
    """Unit vectors of the queries' pictures and of their questions, float64, two [N, D]."""
    image, text = [], []
    for start in range(0, len(queries), BATCH):
        part = queries[start : start + BATCH]
        image.append(towers.images([q.images[0] for q in part]))
        text.append(towers.texts([q.question for q in part]).vectors)
    return np.concatenate(image).astype(np.float64), np.concatenate(text).astype(np.float64)


def severity_table(adapter: GpAdapter, towers: Towers, queries: Sequence[Query]) -> dict[str, Any]:
    """Mean of each statistic by severity, its rank correlation with it, and s by corruption."""
    found = adapter.statistics(*embed(towers, queries))
    level = np.array([q.metadata["severity"] for q in queries])
    table: dict[str, Any] = {}
    for name, values in found.items():
        by = means(values, list(level))
        table[name] = {
            "by_severity": by,
            "spearman_of_means": _rank_correlation(range(len(by)), list(by.values())),
            "spearman": _rank_correlation(level, values),
        }
    clean = level == 0
    for name in CORRUPTIONS:
        own = clean | np.array([q.metadata["corruption"] == name for q in queries])
        table["s"][name] = means(found["s"][own], list(level[own]))
    return table


def _rank_correlation(x: Sequence[float] | FloatArray, y: Sequence[float] | FloatArray) -> Any:
    """Spearman's, or None where y is constant, as the text's statistic over severities is."""
    from scipy.stats import spearmanr

    if np.ptp(y) == 0:
        return None
    return round(float(spearmanr(x, y)[0]), 4)
