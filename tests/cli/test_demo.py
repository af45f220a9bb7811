"""The demo on the embedded models, twice: the same bytes, and what it prints is what it wrote."""

import json
import os
import re
import subprocess
import sys

import pytest

from fusevlm.config import demo_config
from fusevlm.embedded import weights_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (weights_folder() / "vlm").is_dir(), reason="the embedded weights are not here"
    ),
]


def demo(folder, *words):
    command = [sys.executable, "-m", "fusevlm.cli", "demo", "--limit", "80", "--out", str(folder)]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=600, env=dict(os.environ)
    )
    assert done.returncode in (0, 3), done.stderr
    return done.stdout


def test_two_demos_agree_byte_for_byte(tmp_path):
    out = demo(tmp_path / "a", "--quiet")
    demo(tmp_path / "b", "--quiet")
    for name in ("evaluate/results.json", "evaluate/results.csv", "report/index.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    results = json.loads((tmp_path / "a" / "evaluate" / "results.json").read_text())
    whole = results["slices"][0]
    assert tuple(whole["methods"]) == demo_config().calibrate.methods
    for row in whole["methods"].values():
        assert f"{row['auroc']['estimate']:.3f} [" in out
    assert {"in distribution", "severity 0", "answer_type number", "source derived"} <= {
        part["slice"] for part in results["slices"]
    }
    page = (tmp_path / "a" / "report" / "index.html").read_text()
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    data = json.loads(held)
    assert sorted(data["gallery"]) == list(range(whole["queries"]))
    assert all(picture.startswith("data:image/") for picture in data["picture"])
