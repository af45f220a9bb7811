"""Fixtures of the adapter's tests."""

import os
from pathlib import Path

import pytest
import torch
from adapter_worlds import make_pairs

from fusevlm.priors.gp.adapter import GpAdapter

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pairs():
    return make_pairs(300)


@pytest.fixture(scope="session")
def adapter(pairs):
    """A small trained adapter; widths 24 and 20."""
    return GpAdapter(n_latent=3, n_inducing=30, steps=60).fit(*pairs)


@pytest.fixture(scope="session")
def clip_folder():
    home = os.environ.get("FUSEVLM_TEST_DATA")
    if not home:
        pytest.skip("FUSEVLM_TEST_DATA is unset: no real CLIP vectors to test on")
    return Path(home) / "clip_coco_vitb16_500"
