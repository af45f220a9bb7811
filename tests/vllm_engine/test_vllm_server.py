"""vLLM's own server with a tiny LLaVA: runs with pictures over HTTP, killed and resumed."""

import os
import socket
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest

pytest.importorskip("vllm.platforms", reason="vLLM has an environment of its own: make test-vllm")

from tests.models.real_servers import counting, killed_run
from tests.pipeline.tiny_models import save_queries

from fusevlm.cli import main
from fusevlm.data.tables import read_queries
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model
from fusevlm.models.temperatures import constant
from fusevlm.pipeline.evaluate import read_results
from fusevlm.store.generations import read_generations
from fusevlm.testing import tiny
from fusevlm.testing.contract import run_contract
from fusevlm.testing.trial import make_queries

CONFIG = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
[sample]
model = "openai:tiny@{url}"
n = 5
temperature = "1.0"
max_new_tokens = 5
batch = 4
[server]
concurrency = 2
[embed]
towers = "none"
[adapter]
source = "none"
[calibrate]
methods = ["practical", "g_nll", "semantic_entropy_rao"]
[evaluate]
bootstrap = 20
[report]
figures = []
pdf = false
"""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    home = tmp_path_factory.mktemp("served")
    sizes = {"hidden_size": 128, "intermediate_size": 128, "max_position_embeddings": 1024}
    where = tiny.save("llava", home / "llava", end=-0.5, **sizes)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", where,
             "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
             "--enforce-eager", "--dtype", "float32", "--max-model-len", "400",
             "--kv-cache-memory-bytes", "200000000"]  # fmt: skip
    with (home / "log.txt").open("w") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            for _ in range(240):
                time.sleep(0.5)
                assert server.poll() is None, (home / "log.txt").read_text()[-2000:]
                try:
                    urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                    break
                except OSError:
                    continue
            yield f"http://127.0.0.1:{port}/v1", where
        finally:
            server.terminate()
            server.wait(60)


def test_the_server_keeps_the_contract_and_sees_pictures(upstream):
    model = load_model(f"openai:tiny@{upstream[0]}", Decoding(max_new_tokens=5))
    gives = model.gives
    assert (gives.n, gives.logprobs, gives.top_logprobs, gives.images) == (True,) * 4
    outcomes = run_contract(model, make_queries())
    assert not [o for o in outcomes if o.failed], outcomes
    assert "images" in [o.name for o in outcomes if o.passed]
    print(f"\n{gives}")


def test_a_run_with_pictures_is_killed_and_resumed_and_pays_once(upstream, tmp_path):
    save_queries(tmp_path, ["?"])
    asked = read_queries(tmp_path / "calibration.jsonl")
    said = load_model(upstream[1], Decoding(max_new_tokens=5), dtype="float32").sample(
        asked, 1, constant(1), 0
    )
    save_queries(tmp_path, sorted({g.samples.answer for g in said}))
    with counting(upstream[0]) as proxy:
        (tmp_path / "own.toml").write_text(CONFIG.format(url=proxy.url))
        words = ["run", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run"), "--quiet"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        needed = 3 + 60 * 2  # the probe; the judged answer and one call for all samples of each
        kills = (9, 31, 60, 90)
        for calls in kills:
            killed_run(words, proxy, calls, env)
        assert proxy.calls < needed
        assert main(words) in (0, 3)
        failed = sum(g.error is not None for g in read_generations(tmp_path / "run" / "sample"))
        lost = 2 * len(kills)  # as many calls as concurrency allows, each time
        print(f"\n{proxy.calls} calls; needed {needed}, at most {lost} under way when killed")
        assert proxy.calls <= needed + lost
        assert failed == 0
    found = list(read_generations(tmp_path / "run" / "sample"))
    assert len({g.query_id for g in found}) == len(found) == 60
    methods = read_results(tmp_path / "run")["slices"][0]["methods"]
    assert set(methods) == {"practical", "g_nll", "semantic_entropy_rao"}
