"""Texts as vectors of a sentence encoder, and similarity of samples; each text is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError

if TYPE_CHECKING:
    from fusevlm.models.towers import SentenceEncoder


def sentence_vectors(texts: Sequence[str], encoder: str = "minilm") -> FloatArray:
    """Unit vectors [N, D] of texts, such as the inputs of a model whose states nobody sees.

    ``encoder`` is a folder, a hub name, or ``minilm``, which the extra ``sentences`` installs.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InputError("texts must be a list of strings, one per query.")
    if not len(texts):
        raise InputError("texts is empty; expected at least one.")
    checks.extra("torch", "a sentence encoder", "sentences")
    checks.extra("transformers", "a sentence encoder", "sentences")
    from fusevlm.models.towers import SentenceEncoder

    (found,) = sample_vectors(SentenceEncoder.load(encoder), [texts])
    return found


def sample_vectors(encoder: SentenceEncoder, samples: Sequence[Sequence[str]]) -> list[FloatArray]:
    """Unit vectors [n, D] of each query's samples."""
    # texts of like length share a batch, so that little is padded
    distinct = sorted({text for row in samples for text in row}, key=lambda t: (len(t), t))
    vectors = encoder.texts(distinct).vectors.astype(np.float64) if distinct else np.empty((0, 0))
    place = {text: i for i, text in enumerate(distinct)}
    return [vectors[[place[text] for text in row]] for row in samples]


def sentence_similarity(
    encoder: SentenceEncoder, samples: Sequence[Sequence[str]]
) -> list[FloatArray]:
    """``similarity`` [n, n] of each query's samples."""
    rows = sample_vectors(encoder, samples)
    return [similarity(texts, own) for texts, own in zip(samples, rows, strict=True)]


def answer_similarity(
    encoder: SentenceEncoder, samples: Sequence[Sequence[str]], answers: Sequence[str]
) -> list[FloatArray]:
    """``similarity`` [n] of each query's samples to its judged answer."""
    rows = [[*texts, answer] for texts, answer in zip(samples, answers, strict=True)]
    return [matrix[-1, :-1] for matrix in sentence_similarity(encoder, rows)]


def similarity(texts: Sequence[str], vectors: FloatArray) -> FloatArray:
    """(1 + cosine)/2 of n texts by their unit vectors [n, D]: [n, n] in [0, 1].

    The linear map keeps the order of all cosines: opposite texts have 0, unrelated ones about 1/2.
    Equal texts have exactly 1: rounding would otherwise rank queries whose samples are all equal,
    and a score with many ties would show it.
    """
    cosine = np.clip(vectors @ vectors.T, -1.0, 1.0)
    return np.where(np.equal.outer(texts, texts), 1.0, (1.0 + cosine) / 2.0)
