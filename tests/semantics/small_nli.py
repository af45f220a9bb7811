"""Tiny random inference models, built offline."""

from fusevlm.semantics.inference import NliModel
from fusevlm.testing import tiny_helpers

LABELS = tiny_helpers.LABELS
KINDS = tuple(tiny_helpers.INFERENCE)


def build(kind, seed=0):
    return NliModel(*tiny_helpers.build_inference(kind, seed), batch=8)
