"""Datasets × models × methods on one set of samples each: the paper's tables, with intervals."""
