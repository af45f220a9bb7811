"""`fusevlm run` with a real server: end to end over HTTP, killed and resumed; paid once."""

import csv
import json
import os
import re
from pathlib import Path

import pytest
from tests.models import capitals
from tests.models.real_servers import counting, killed_run, llama_cpp, need_llama_cpp

from fusevlm.cli import main
from fusevlm.models.completions import Gives
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model
from fusevlm.pipeline.evaluate import read_results
from fusevlm.store.generations import read_generations
from fusevlm.store.runs import read_manifest
from fusevlm.testing.contract import run_contract
from fusevlm.types import Query

pytestmark = pytest.mark.slow
CONFIG = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
[sample]
model = "openai:smollm2@{url}"
n = 5
temperature = "1.0"
max_new_tokens = 10
batch = 4
[server]
concurrency = 2
[embed]
towers = "none"
[adapter]
source = "none"
[calibrate]
methods = ["practical", "g_nll"]
[evaluate]
bootstrap = 20
[report]
figures = ["roc"]
pdf = false
"""


@pytest.fixture(scope="module")
def upstream():
    need_llama_cpp()
    with llama_cpp(slots=5) as url:  # as many as samples: it takes no larger n
        yield url


def save_capitals(folder):
    asked = capitals.rows()
    for split, some in {"calibration": asked[::2], "test": asked[1::2]}.items():
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, some)))
    return len(asked)


def test_llama_cpp_keeps_the_contract(upstream):
    model = load_model(f"openai:smollm2@{upstream}", Decoding(max_new_tokens=8))
    given = {name: getattr(model.gives, name) for name in Gives.__dataclass_fields__}
    # `n` is honoured, tokens spell the text, no picture is taken
    assert given | {"model": "", "fingerprint": ""} == {
        "model": "", "fingerprint": "", "n": True, "logprobs": True, "top_logprobs": True,
        "eos": given["eos"], "spelled": True, "seed": True, "unfiltered": True, "images": False,
        "varies": True, "limit": "max_tokens",
    }  # fmt: skip
    queries = [Query(f"q{k}", f"Name a colour. {k}") for k in range(2)]
    outcomes = run_contract(model, queries)
    assert not [o for o in outcomes if o.failed], outcomes


def test_a_run_that_is_killed_pays_for_nothing_twice(upstream, tmp_path, capsys):
    size = save_capitals(tmp_path)
    with counting(upstream) as proxy:
        (tmp_path / "own.toml").write_text(CONFIG.format(url=proxy.url))
        words = ["run", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run"), "--quiet"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        probe, each = 3, 2
        needed = probe + size * each
        kills = (9, 41, 80, 120)
        for calls in kills:
            killed_run(words, proxy, calls, env)
        lost = 2 * len(kills)  # as many calls as concurrency allows, each time
        assert proxy.calls < needed
        assert main(words) in (0, 3)
        assert proxy.calls <= needed + lost
        with capsys.disabled():
            print(f"\n{proxy.calls} calls; needed {needed}, at most {lost} under way when killed")
    found = list(read_generations(tmp_path / "run" / "sample"))
    assert len({g.query_id for g in found}) == len(found) == size
    assert all(g.error is None for g in found)
    counts = read_manifest(tmp_path / "run", "sample").counts
    assert (counts["failed"], counts["queries"]) == (0, size)
    results = read_results(tmp_path / "run")
    whole = results["slices"][0]
    assert whole["queries"] == size // 2
    assert 0.1 < whole["base_accuracy"]["estimate"] < 0.9
    assert whole["methods"]["practical"]["auroc"]["estimate"] > 0.6
    assert set(whole["methods"]) == {"practical", "g_nll"}


def test_the_ten_lines_run_against_a_real_server(upstream, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "api-models.md").read_text()
    lines = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    assert len(lines.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    rows = [(row["question"], row["references"]) for row in capitals.rows()]
    with (tmp_path / "labelled.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["question", "references"])
        writer.writerows([(question, json.dumps(right)) for question, right in rows[:40]])
    source = "openai:NAME@http://localhost:8000/v1"
    lines = lines.replace(source, f"openai:smollm2@{upstream}").replace("n=10", "n=5")
    exec(compile(lines, "docs", "exec"), {})
    printed = capsys.readouterr().out
    assert "P(wrong)" in printed
    assert "5 samples: " in printed
    assert "'calls'" in printed
