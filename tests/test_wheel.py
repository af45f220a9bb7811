"""The wheel a user installs: complete, typed, and usable without the source tree."""

import subprocess
import sys
import zipfile

import pytest
from tests.mutants import ROOT, SOURCE

from fusevlm.models.registry import GROUP, OURS


@pytest.mark.slow
def test_wheel_is_complete_and_works_on_its_own(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, *build, str(ROOT)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("fusevlm-*.whl")
    archive = zipfile.ZipFile(wheel)
    inside = set(archive.namelist())
    (points,) = (name for name in inside if name.endswith("entry_points.txt"))
    declared = archive.read(points).decode()
    assert "fusevlm = fusevlm.cli:main" in declared
    for name, entry in OURS.items():
        assert f"{name} = {entry.value}" in declared.split(f"[{GROUP}]")[1]
    files = {f"fusevlm/{p.relative_to(SOURCE)}" for p in SOURCE.rglob("*.py")}
    weights = SOURCE / "embedded" / "weights"
    files |= {f"fusevlm/{p.relative_to(SOURCE)}" for p in weights.rglob("*") if p.is_file()}
    assert files | {"fusevlm/py.typed", "fusevlm/data/reserved.json"} <= inside
    assert "fusevlm/embedded/weights/vlm/model.safetensors" in inside
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in inside)
    target = tmp_path / "site"
    install = ["install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=300)
    code = f"""
import sys
sys.path.insert(0, {str(target)!r})
import fusevlm
assert fusevlm.__file__.startswith({str(target)!r})
from fusevlm.cli import main
assert main(["demo", "--simulation", "--limit", "160", "--quiet"]) == 0
from PIL import Image
answer = fusevlm.load("embedded").ask(Image.new("RGB", (64, 64)), "what color is the shape?", n=4)
assert sum(answer.samples.values()) == 4
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=300)
