"""The wheel a user installs: complete, typed, and usable without the source tree."""

import base64
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from urllib.request import ProxyHandler, Request, build_opener

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
    assets = [*(SOURCE / "serve" / "assets").iterdir(), *(SOURCE / "render" / "assets").iterdir()]
    files |= {f"fusevlm/{p.relative_to(SOURCE)}" for p in assets}
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


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist, the wheel that the sdist makes)."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(build, check=True, cwd=ROOT, timeout=300, capture_output=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "source", filter="data")
    (source,) = (out / "source").iterdir()
    again = [*build[:-1], str(out / "again"), "-t", "wheel"]
    subprocess.run(again, check=True, cwd=source, timeout=300, capture_output=True)
    (second,) = (out / "again").glob("*.whl")
    return wheel, sdist, second


@pytest.mark.slow
def test_the_sdist_makes_the_same_wheel(built):
    wheel, sdist, again = built

    def contents(path):
        archive = zipfile.ZipFile(path)
        return {name: archive.read(name) for name in archive.namelist()}

    assert contents(again) == contents(wheel)
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "constraints.txt", "pyproject.toml", "Dockerfile"} <= inside
    assert "src/fusevlm/serve/assets/live.html" in inside


@pytest.fixture(scope="module")
def empty(built, tmp_path_factory):
    """The command of an environment that had nothing in it but the wheel and what it asks for."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home / "venv", with_pip=True)
    python = home / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    wanted = ["-c", str(ROOT / "constraints.txt"), f"{built[0]}[embedded,report,server]"]
    done = subprocess.run([*pip, *wanted], capture_output=True, text=True, timeout=900)
    if done.returncode and re.search(r"(?i)connection|name resolution|timed out", done.stderr):
        pytest.skip(f"no package index: {done.stderr.splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stderr
    return home


def command(home, *words, **options):
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.Popen(
        [str(home / "venv" / "bin" / "fusevlm"), *words], cwd=home, text=True, env=env, **options
    )


@pytest.mark.slow
def test_demo_ask_and_serve_in_an_empty_environment(empty):
    """As on a user's machine: installed from the wheel, away from the clone.

    What is served is the run that the demo made, with its own calibration.
    """
    inside = subprocess.run(
        [str(empty / "venv" / "bin" / "python"), "-c", "import fusevlm; print(fusevlm.__file__)"],
        capture_output=True, text=True, cwd=empty, check=True,
    )  # fmt: skip
    assert str(empty) in inside.stdout
    with command(empty, "demo", "--limit", "240", stdout=subprocess.PIPE) as demo:
        told = demo.communicate(timeout=600)[0]
    assert demo.returncode in (0, 3)
    assert "120 test queries" in told
    shape = SOURCE / "serve" / "assets" / "shape.png"
    words = ("ask", str(shape), "what shape is in the image?", "--json")
    with command(empty, *words, stdout=subprocess.PIPE) as ask:
        found = json.loads(ask.communicate(timeout=300)[0])
    assert (found["answer"], found["decision"]) == ("circle", "answer")
    words = ("serve", "--port", "0", "--model", "runs/demo-240", "--name", "shapes")
    with command(empty, *words, stderr=subprocess.PIPE) as serve:
        try:
            url = re.search(r"http://\S+", serve.stderr.readline())[0]
            opener = build_opener(ProxyHandler({}))
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                try:
                    page = opener.open(url, timeout=10).read().decode()
                    break
                except OSError:
                    time.sleep(0.1)
            assert "<h1>Ask shapes</h1>" in page
            picture = base64.b64encode(shape.read_bytes()).decode()
            body = {
                "question": "what shape is in the image?",
                "image": f"data:image/png;base64,{picture}",
            }
            request = Request(
                f"{url}/v1/ask", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            reply = json.load(opener.open(request, timeout=60))
            assert (reply["answer"], reply["model"]) == ("circle", "shapes")
        finally:
            serve.terminate()
            serve.communicate(timeout=60)
    assert serve.returncode == 0
