"""Shared fixtures."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; forks hang with more

import pytest

from fusevlm import simulate


@pytest.fixture(scope="session")
def world():
    """300 simulated queries in the paper's own model."""
    return simulate.queries(300, n_samples=8, d=24, seed=3)
