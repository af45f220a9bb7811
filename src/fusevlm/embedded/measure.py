"""What the trained models can do, on images they have not seen: the numbers of the model card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fusevlm.adapter.gp import GpAdapter
from fusevlm.backends.embedders import Towers
from fusevlm.backends.huggingface import HuggingFace
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.embedded import models, packing
from fusevlm.embedded.models import INSTRUCTION
from fusevlm.embedded.pictures import CLEAN, CORRUPTIONS, SEVERITIES, as_image, corrupt
from fusevlm.embedded.questions import derived_questions as derived
from fusevlm.embedded.questions import make_query, package_questions
from fusevlm.embedded.scenes import COLORS, SHAPES, Scene, read_pixels
from fusevlm.errors import FuseError
from fusevlm.types import Query

VIEWS = ((CLEAN, 0), *((c, s) for c in CORRUPTIONS for s in SEVERITIES))
BATCH = 64
SAMPLED = 8  # queries sampled together


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
    names = sorted(set(groups), key=str)
    keys = np.array([str(g) for g in groups])
    return {str(n): round(float(np.mean(values[keys == str(n)])), 4) for n in names}


def accuracies(model: Any, queries: Sequence[Query]) -> dict[str, Any]:
    """Accuracy over all queries and by what is known about them."""
    right = is_right(model, queries)
    facts = [q.metadata for q in queries]
    known = np.array([not (f["held_out_pair"] or f["unseen_phrasing"]) for f in facts])
    clean = np.array([f["severity"] == 0 for f in facts])
    kinds = [f["kind"] for f in facts]
    plain = known & clean
    found: dict[str, Any] = {
        "n": len(queries),
        "all": round(float(right.mean()), 4),
        "clean_in_distribution": round(float(right[plain].mean()), 4),
        "n_clean_in_distribution": int(plain.sum()),
        "clean_by_kind": means(right[plain], [k for k, p in zip(kinds, plain, strict=True) if p]),
    }
    for key in ("severity", "corruption", "answer_type", "source", "kind"):
        found[key] = means(right, [f[key] for f in facts])
    for key in ("held_out_pair", "unseen_phrasing"):
        found[key] = means(right, [f[key] for f in facts])
        part = [f[key] for f, c in zip(facts, clean, strict=True) if c]
        found[f"clean_{key}"] = means(right[clean], part)
    return found


def distinct(backend: HuggingFace, queries: Sequence[Query], n: int = 10) -> dict[str, float]:
    """Mean number of different answers among n samples at temperature 1, by severity."""
    found = []
    for start in range(0, len(queries), SAMPLED):
        part = queries[start : start + SAMPLED]
        for generation in backend.sample(part, n, np.ones(n), 0):
            if generation.samples is None:
                raise FuseError(f"{generation.query_id}: {generation.error}")
            found.append(float(generation.samples.n_distinct))
    return means(np.array(found), [q.metadata["severity"] for q in queries])


def every_view(name: str, scenes: Sequence[Scene], seed: int = 0) -> list[Query]:
    """One question per scene, the same for all 26 views of its picture."""
    found = []
    for scene in scenes:
        rng = np.random.default_rng([seed, *scene.seed])
        asked = [*package_questions(scene), *derived(scene)]
        chosen = asked[int(rng.integers(len(asked)))]
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
    from scipy.stats import spearmanr

    found = adapter.statistics(*embed(towers, queries))
    level = np.array([q.metadata["severity"] for q in queries])
    table: dict[str, Any] = {}
    for name, values in found.items():
        by = means(values, list(level))
        table[name] = {
            "by_severity": by,
            "spearman_of_means": round(float(spearmanr(range(len(by)), list(by.values()))[0]), 4),
            "spearman": round(float(spearmanr(level, values)[0]), 4),
        }
    clean = level == 0
    for name in CORRUPTIONS:
        own = clean | np.array([q.metadata["corruption"] == name for q in queries])
        table["s"][name] = means(found["s"][own], list(level[own]))
    return table
