"""fusevlm tells you when to trust a vision-language model.

Names are loaded on first use, so ``import fusevlm`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusevlm import metrics
    from fusevlm.assistant import load
    from fusevlm.baselines import baseline, semantic_entropy
    from fusevlm.data.sampled import Sampled, read_sampled
    from fusevlm.data.tables import read_queries
    from fusevlm.errors import FuseError
    from fusevlm.fuse import simulate, thresholds
    from fusevlm.fuse.estimator import Fuse
    from fusevlm.fuse.labels import labels_needed
    from fusevlm.fuse.results import Decisions, Scores
    from fusevlm.fuse.rounds import Rounds, usual_tiers
    from fusevlm.maths.evidence import semantic_evidence
    from fusevlm.maths.wishart import wishart_moments
    from fusevlm.models.registry import load_model as model
    from fusevlm.priors.pictures import picture_statistics
    from fusevlm.scorer import Scorer, sample
    from fusevlm.semantics.sentences import sentence_vectors
    from fusevlm.types import Queries, Query, Samples

__version__ = "0.1.0"

__all__ = [
    "Decisions",
    "Fuse",
    "FuseError",
    "Queries",
    "Query",
    "Rounds",
    "Sampled",
    "Samples",
    "Scorer",
    "Scores",
    "__version__",
    "baseline",
    "labels_needed",
    "load",
    "metrics",
    "model",
    "picture_statistics",
    "read_queries",
    "read_sampled",
    "sample",
    "semantic_entropy",
    "semantic_evidence",
    "sentence_vectors",
    "simulate",
    "thresholds",
    "usual_tiers",
    "wishart_moments",
]

_HOME = {
    "Decisions": "fusevlm.fuse.results:Decisions",
    "Fuse": "fusevlm.fuse.estimator:Fuse",
    "FuseError": "fusevlm.errors:FuseError",
    "Queries": "fusevlm.types:Queries",
    "Query": "fusevlm.types:Query",
    "Rounds": "fusevlm.fuse.rounds:Rounds",
    "Sampled": "fusevlm.data.sampled:Sampled",
    "Samples": "fusevlm.types:Samples",
    "Scorer": "fusevlm.scorer:Scorer",
    "Scores": "fusevlm.fuse.results:Scores",
    "baseline": "fusevlm.baselines:baseline",
    "labels_needed": "fusevlm.fuse.labels:labels_needed",
    "load": "fusevlm.assistant:load",
    "metrics": "fusevlm.metrics",
    "model": "fusevlm.models.registry:load_model",
    "picture_statistics": "fusevlm.priors.pictures:picture_statistics",
    "read_queries": "fusevlm.data.tables:read_queries",
    "read_sampled": "fusevlm.data.sampled:read_sampled",
    "sample": "fusevlm.scorer:sample",
    "semantic_entropy": "fusevlm.baselines:semantic_entropy",
    "semantic_evidence": "fusevlm.maths.evidence:semantic_evidence",
    "sentence_vectors": "fusevlm.semantics.sentences:sentence_vectors",
    "simulate": "fusevlm.fuse.simulate",
    "thresholds": "fusevlm.fuse.thresholds",
    "usual_tiers": "fusevlm.fuse.rounds:usual_tiers",
    "wishart_moments": "fusevlm.maths.wishart:wishart_moments",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fusevlm' has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted(__all__)
