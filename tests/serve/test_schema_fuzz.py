"""schemathesis over /openapi.json: whatever it allows or forbids, no 5xx and no surprise."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.serve.live import served
from tests.serve.test_serve_state import parsed

from fusevlm import Query, Sampled, Samples, Scorer
from fusevlm.serve.feedback import Feedback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("schemathesis") is None, reason="needs schemathesis: make .venv/.slow"
    ),
]
HERE = Path(__file__).parent
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_schema_conformance", "response_headers_conformance", "unsupported_method",
)  # fmt: skip
PROGRAM = "from schemathesis.cli import schemathesis; schemathesis()"


def fuzzed(client, folder, checks, examples, **env):
    """What schemathesis prints; it must find nothing."""
    words = [
        "run", f"{client.base_url}/openapi.json", "--checks", ",".join(checks),
        "--max-examples", str(examples), "--phases", "examples,coverage,fuzzing",
        "--seed", "1", "--continue-on-failure", "--suppress-health-check", "all",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, cwd=folder,
        env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return int(re.search(r"(\d+) generated", done.stdout)[1])


def test_no_request_breaks_the_server(assistant, tmp_path):
    """A server with everything: a model, a fit, a feedback table.

    First as the schema has it, then with half of the requests helped through (tests/serve/
    fuzz_hooks.py): few texts are pictures by chance.
    """
    rows = [
        Sampled(Query(f"q{k}", "x?"), Samples(["a"] * (8 - k % 5) + ["b"] * (k % 5)),
                wrong=k % 5 > 2)
        for k in range(120)
    ]  # fmt: skip
    scorer = Scorer.fit(rows, towers="none")
    with served(assistant, scorer=scorer, feedback=Feedback(tmp_path / "f.jsonl")) as (client, _):
        made = fuzzed(client, tmp_path, (*CHECKS, "negative_data_rejection"), 30)
        helped = {"SCHEMATHESIS_HOOKS": "fuzz_hooks", "PYTHONPATH": str(HERE)}
        made += fuzzed(client, tmp_path, CHECKS, 100, **helped)
        told = parsed(client.get("/metrics").text)
        assert client.get("/healthz").status_code == 200
    counts = {
        (dict(labels)["path"], dict(labels)["status"]): int(value)
        for (name, labels), value in told.items()
        if name == "fusevlm_requests_total"
    }
    print(f"{made} requests made by schemathesis; answered: {counts}")
    assert not [status for _, status in counts if status.startswith("5")]
    assert made > 1000
    for path in ("/v1/ask", "/v1/chat/completions", "/v1/score"):
        assert counts.get((path, "200"), 0) > 10, counts
        assert counts.get((path, "422"), 0) > 10, counts
