"""Metrics, drift, feedback, readiness, the page's file, and the documents about all of it."""

import base64
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.live import ASK, SHAPE, code, data_url, noise, picture, png, served

from fusevlm import read_sampled
from fusevlm.cli import main
from fusevlm.data.questions import queries
from fusevlm.data.scenes import read_pixels, split
from fusevlm.serve import drift
from fusevlm.serve.drift import DriftWatch
from fusevlm.serve.faults import table
from fusevlm.serve.feedback import Feedback
from fusevlm.serve.metrics import COUNTS, KNOWN, Histogram, Metrics
from fusevlm.serve.page import examples, live_page

ROOT = Path(__file__).resolve().parents[2]


def parsed(text):
    """{(name, labels): value}, as Prometheus's own parser reads it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(assistant):
    with served(assistant) as (client, _):
        found = [client.post("/v1/ask", json=ASK).json()]
        found += [client.post("/v1/ask", json={**ASK, "image": noise(k)}).json() for k in range(5)]
        client.post("/v1/ask", json={"question": 3})
        client.get("/nowhere")
        told = parsed(client.get("/metrics").text)
    path = ("path", "/v1/ask")
    assert told["fusevlm_requests_total", (path, ("status", "200"))] == 6
    assert told["fusevlm_requests_total", (path, ("status", "422"))] == 1
    assert told["fusevlm_requests_total", (("path", "other"), ("status", "404"))] == 1
    assert told["fusevlm_faults_total", (("code", "invalid"),)] == 1
    assert told["fusevlm_request_seconds_count", (path,)] == 7
    assert 0.05 < told["fusevlm_request_seconds_sum", (path,)] < 60
    reasons = [one["reason"] for one in found if one["decision"] == "abstain"]
    assert reasons
    for reason in set(reasons):
        key = ("fusevlm_abstentions_total", (("reason", reason),))
        assert told[key] == reasons.count(reason)
    assert told["fusevlm_decisions_total", (("decision", "abstain"),)] == len(reasons)
    assert told["fusevlm_samples_sum", ()] == 6 * 21
    assert told["fusevlm_drift_queries", ()] == 6
    assert 0 < told["fusevlm_drift_p_value", ()] <= 1


def test_a_histogram_is_what_its_values_are():
    values = [0.5, 1.0, 1.5, 8.0, 200.0]
    histogram = Histogram(COUNTS)
    for value in values:
        histogram.add(value)
    assert histogram.below == [sum(v <= bound for v in values) for bound in COUNTS]
    assert (histogram.count, histogram.total) == (5, sum(values))


def test_any_label_can_be_read_again():
    metrics, strange = Metrics(), 'a "quoted"\\ text\nin two lines'
    metrics.count("fusevlm_faults_total", code=strange)
    metrics.observe("fusevlm_batch_queries", 3.0)
    told = parsed(metrics.text({"fusevlm_ready": 1.0, "fusevlm_drift_p_value": float("nan")}))
    assert told["fusevlm_faults_total", (("code", strange),)] == 1
    assert told["fusevlm_batch_queries_bucket", (("le", "4"),)] == 1
    assert ("fusevlm_drift_p_value", ()) not in told
    assert all(name.startswith("fusevlm_") for name in KNOWN)


def seen(assistant, asked):
    found = []
    assistant.ask_all(asked, watch=found.append)
    return [one.table for one in found]


def test_drift_is_noticed_and_its_absence_is_not(assistant):
    """The p-value is 1/(highest capital): small for other pictures, not for the usual ones."""
    usual, strange = DriftWatch(assistant.fuse), DriftWatch(assistant.fuse)
    plain = queries("test", limit=30)
    other = [replace(q, images=[picture(k)]) for k, q in enumerate(plain[:20])]
    tables = seen(assistant, plain)
    told = {usual: 0, strange: 0}  # alarms: of several threads one has it
    for watch, some in ((usual, tables), (strange, seen(assistant, other))):
        for k, one in enumerate(some):
            told[watch] += watch.see(str(k), one)
    assert told == {usual: 0, strange: 1}
    assert (usual.state.seen, strange.state.seen) == (30, 20)
    assert not usual.state.alarm
    assert usual.state.p_value > 0.01
    assert strange.state.p_value < 0.01
    assert strange.state.alarm
    assert strange.state.alarms == 1
    lowest = strange.state.p_value
    for k, one in enumerate(tables):  # the stakes are lost again, but what was found is not
        strange.see(f"usual {k}", one)
    assert strange.state.p_value <= lowest
    assert strange.state.alarms == 1


def test_of_one_picture_the_first_query_counts(assistant, monkeypatch):
    (one,) = seen(assistant, queries("test", limit=1))
    watch = DriftWatch(assistant.fuse)
    for _ in range(20):
        watch.see("the same", one)
    assert watch.state.seen == 1
    monkeypatch.setattr(drift, "WINDOW", 3)
    monkeypatch.setattr(drift, "UNITS", 4)
    for k in range(20):
        watch.see(str(k), one)
    assert watch.state.seen <= 3  # begun anew, so that nothing grows for ever
    assert len(watch._units) == 4


def test_only_what_was_asked_as_in_the_calibration_is_compared(assistant):
    with served(assistant) as (client, desk):
        for k, more in enumerate(({}, {"n": 20}, {"n": 3}, {"samples": "as needed"},
                                  {"history": [{"role": "user", "text": "x"}]})):  # fmt: skip
            assert client.post("/v1/ask", json={**ASK, "image": noise(k), **more}).is_success
        assert desk.drift.state.seen == 2


def test_feedback_becomes_a_table_that_fit_reads(assistant, tmp_path, capsys):
    path = tmp_path / "told" / "feedback.jsonl"
    asked = queries("test", limit=60)
    with served(assistant, feedback=Feedback(path)) as (client, _):

        def ask(query):
            body = {"question": query.question, "image": data_url(png(query.images[0])), "n": 4}
            return client.post("/v1/ask", json=body).json()

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, asked))
        told = []
        for query, found in zip(asked, answers, strict=True):
            wrong = found["answer"] not in query.references
            reply = client.post("/v1/feedback", json={"id": found["id"], "wrong": wrong})
            assert reply.json() == {"id": found["id"], "kept": True}
            again = client.post("/v1/feedback", json={"id": found["id"], "wrong": wrong})
            assert again.status_code == 200  # no news
            told.append((found, wrong))
        strange = client.post("/v1/feedback", json={"id": "fv-none", "wrong": True})
        assert (strange.status_code, code(strange)) == (404, "unknown_answer")
        counted = parsed(client.get("/metrics").text)
        total = sum(v for (name, _), v in counted.items() if name == "fusevlm_feedback_total")
        assert total == 60
    rows = read_sampled(path)
    assert len(rows) == 60
    for row, (found, wrong) in zip(rows, told, strict=True):
        assert not row.error
        assert (row.query.id, row.wrong) == (found["id"], wrong)
        assert row.query.question == found["question"]
        assert row.samples.answer == found["answer"]
        assert len(row.samples.token_logprobs) == len(row.samples) == 4
        assert not row.query.images
    assert len({row.columns["picture"] for row in rows}) == len({q.images[0].tobytes()
                                                                 for q in asked})  # fmt: skip
    words = ["fit", str(path), "--out", str(tmp_path / "fit"), "--towers", "none",
             "--unit", "picture"]  # fmt: skip
    assert main(words) == 0
    assert "60 labelled queries" in capsys.readouterr().out


def test_feedback_is_kept_only_where_it_is_wanted(server, tmp_path):
    client, _ = server
    reply = client.post("/v1/feedback", json={"id": "x", "wrong": True})
    assert (reply.status_code, code(reply)) == (404, "no_feedback")
    (tmp_path / "table.csv").touch()
    with pytest.raises(ValueError, match=r"expected a file that ends in \.jsonl"):
        Feedback(tmp_path / "table.csv")


def test_what_people_say_is_on_disk_before_they_are_thanked(assistant, tmp_path):
    (tmp_path / "wall").write_text("a file where a folder should be")
    with served(assistant, feedback=Feedback(tmp_path / "wall" / "f.jsonl")) as (client, _):
        name = client.post("/v1/ask", json={**ASK, "n": 2}).json()["id"]
        reply = client.post("/v1/feedback", json={"id": name, "wrong": True})
        assert (reply.status_code, code(reply)) == (500, "server_failed")
        assert str(tmp_path) not in reply.text


def test_the_page_is_one_file_and_its_policy_lets_in_nothing_else(server):
    client, desk = server
    reply = client.get("/")
    page, policy = live_page(desk)
    assert reply.text == page
    assert reply.headers["content-security-policy"] == policy
    assert "{{" not in page
    assert not re.search(r"""(src|href)=["']?(?!data:|#|openapi\.json)\w""", page)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_a_models_name_is_text_on_the_page(assistant):
    name = "</title><script>alert(1)</script>{{data}}"
    with served(assistant, name=name) as (client, _):
        page = client.get("/").text
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{data}}" in page


def test_the_examples_are_what_they_say(assistant):
    """Clean is answered, blurred, from elsewhere and unseen are not, each for its own cause."""
    found = {}
    for one in examples():
        image = base64.b64decode(one.image.partition(",")[2])
        found[one.name] = assistant.ask(image, one.question)
    assert found["Clean"].decision == "answer"
    assert [found[name].decision for name in ("Blurred", "From elsewhere", "Unseen phrasing")] == [
        "abstain"
    ] * 3
    assert (found["Blurred"].cause, found["Blurred"].side) == ("aleatoric", "picture")
    assert found["From elsewhere"].cause == "novelty"
    assert found["Unseen phrasing"].side == "question"


def test_the_clean_example_is_easy_vqas_own():
    (scene,) = (one for one in split("test") if one.image_id == "test/15")
    from fusevlm.data.images import load_image

    assert np.array_equal(read_pixels([scene])[0], np.asarray(load_image(SHAPE)))


def test_the_documentation_has_every_fault_as_it_is():
    assert table() in (ROOT / "docs" / "serve.md").read_text()


def test_every_path_is_documented(server):
    client, _ = server
    schema = client.get("/openapi.json").json()
    page = (ROOT / "docs" / "serve.md").read_text()
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            assert f"`{method.upper()} {path}`" in page
            assert about["summary"]
            assert {"400", "401", "422", "500"} <= set(about["responses"])
            for status in ("422", "500"):
                told = about["responses"][status]["content"]["application/json"]["schema"]
                assert told["$ref"].endswith("/Problem")
