"""Shared fixtures."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; forks hang with more
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # see the Makefile

import pytest

from fusevlm import simulate


@pytest.fixture(scope="session")
def world():
    """300 simulated queries in the paper's own model."""
    return simulate.queries(300, n_samples=8, d=24, seed=3)


def pytest_collection_modifyitems(items):
    """Tests of what only the documentation's tools can do run where these are installed."""
    for item in items:
        if {"docstrings", "pages"} & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
