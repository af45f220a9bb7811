"""Statistics of pixels, against their definition."""

import numpy as np
import pytest
from PIL import Image

from fusevlm import picture_statistics
from fusevlm.errors import InputError


def test_a_flat_picture():
    flat = Image.new("RGB", (30, 50), (255, 0, 51))
    (found,) = picture_statistics([flat])
    assert found.shape == (168,)
    scales = found.reshape(4, 2, 7, 3)  # size, values or slopes, quantile, channel
    np.testing.assert_allclose(scales[:, 0], np.tile([0.4, 1.0, 0.2 - 0.5], (4, 7, 1)), atol=1e-12)
    np.testing.assert_allclose(scales[:, 1], np.log(0.003))


def test_quantiles_and_slopes_by_hand():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    (found,) = picture_statistics([Image.fromarray(pixels)])
    gray = (pixels / 255.0).mean(axis=2)
    scales = found.reshape(4, 2, 7, 3)
    for size in range(4):
        assert scales[size, 0, 3, 0] == pytest.approx(np.median(gray))
        lengths = [
            np.log(0.003 + np.hypot(gray[i + 1, j] - gray[i, j], gray[i, j + 1] - gray[i, j]))
            for i in range(len(gray) - 1)
            for j in range(len(gray) - 1)
        ]
        assert scales[size, 1, 5, 0] == pytest.approx(np.quantile(lengths, 0.9))
        n = len(gray) // 2
        gray = np.array([
            [gray[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean() for j in range(n)] for i in range(n)
        ])  # fmt: skip


def test_any_mode_and_size_and_none():
    found = picture_statistics([Image.new("L", (3, 200), 90), Image.new("RGBA", (400, 20))])
    assert np.isfinite(found).all()
    with pytest.raises(InputError, match="no images"):
        picture_statistics([])
