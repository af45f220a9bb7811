"""A tiny LLaVA, pictures and questions for the back-end tests."""

import numpy as np
import pytest
import transformers
from PIL import Image

from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.testing import tiny
from fusevlm.types import Query

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def make_picture(seed, size=(40, 48)):
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8))


def make_query(i, **changes):
    words = "what colour is the shape " + "red " * (i % 4)
    return Query(**{"id": f"q{i}", "question": words, "images": [make_picture(i)], **changes})


@pytest.fixture(scope="session")
def llava():
    return HuggingFace(*tiny.build("llava"), decoding=Decoding(max_new_tokens=5))
