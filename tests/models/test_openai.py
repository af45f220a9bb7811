"""A model behind a server, over a real loopback connection: what it gives, and every fault."""

import json
import logging
import re
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest
from tests.models.chat_server import EOS, LENGTH, WORDS, logprobs, serving
from tests.models.conftest import make_picture, make_query
from tests.models.toy import Toy

from fusevlm.cli import main
from fusevlm.errors import InputError
from fusevlm.models.budget import BudgetError, Meter
from fusevlm.models.calls import KEYS, cleared
from fusevlm.models.completions import Gives, best_gap, spells
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model
from fusevlm.models.temperatures import constant, stratified
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.sample import note_server, open_maker, read_server, sample_parts
from fusevlm.settings import ServerConfig
from fusevlm.store.files import save_sealed
from fusevlm.store.generations import KIND, read_generations
from fusevlm.store.journal import Journal
from fusevlm.store.parts import Parts
from fusevlm.store.runs import read_manifest, read_run
from fusevlm.testing.contract import run_contract
from fusevlm.testing.trial import make_queries
from fusevlm.types import Query

SECRET = "sk-proj-Zx81QwErTy0987"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    with serving() as found:
        yield found


def load(server, decoding=None, name="toy", before=None, **options):
    given = {"backoff": 0.001, **options}
    return load_model(f"openai:{name}@{server.url}", decoding, offered={"before": before}, **given)


def text_query(i=0, **changes):
    return Query(**{"id": f"t{i}", "question": f"which word is number {i}?", **changes})


def ask(model, query=None, n=5, heat=None, seed=0):
    (found,) = model.sample([query or text_query()], n, constant(n) if heat is None else heat, seed)
    return found


# ---------------------------------------------------------------------------- what a server gives


@pytest.mark.parametrize(
    "lacks",
    [{}, {"n": "ignored"}, {"n": "no", "seed": "no"}, {"logprobs": "ignored"},
     {"top_logprobs": "no", "top_k": "no"}, {"images": "no"}, {"max_tokens": "no"},
     {"logprobs": "no", "top_logprobs": "no", "top_k": "no", "max_tokens": "no"}],
    ids=str,
)  # fmt: skip
def test_what_a_server_lacks_is_found_out(server, lacks):
    server.skills |= lacks
    model = load(server, Decoding(max_new_tokens=5))
    there = {name: skill == "yes" for name, skill in server.skills.items()}
    assert model.gives == Gives(
        model="toy-1", fingerprint="fp_7", n=there["n"], logprobs=there["logprobs"],
        top_logprobs=there["logprobs"] and there["top_logprobs"], eos=there["logprobs"],
        spelled=there["logprobs"], seed=there["seed"], unfiltered=there["top_k"],
        images=there["images"],
        limit="max_tokens" if there["max_tokens"] else "max_completion_tokens",
    )  # fmt: skip
    assert ask(model).error is None


@pytest.mark.parametrize("lacks", [{}, {"n": "ignored", "logprobs": "ignored"}], ids=str)
def test_the_contract_holds(server, lacks):
    server.skills |= lacks
    model = load(server, Decoding(max_new_tokens=5))
    assert not [o for o in run_contract(model, make_queries()[:2]) if o.failed]


def test_numbers_are_those_of_the_model_at_temperature_1(server):
    model = load(server)
    query = make_query(1, history=[("user", "hello"), ("assistant", "yes?")])
    found = ask(model, query, n=6, heat=np.array([0.3, 1.0, 0.3, 0.0, 2.0, 2.0]))
    assert found.error is None
    messages = server.bodies[-1]["messages"]
    table = [logprobs(messages, step) for step in range(LENGTH)]
    words = [word.strip() for word in WORDS]
    for text, row in zip(found.samples.texts, found.samples.token_logprobs, strict=True):
        expected = [table[s][words.index(word)] for s, word in enumerate(text.split())]
        assert row == pytest.approx([*expected, EOS])
    best = [words[int(np.argmax(row))] for row in table]
    assert found.samples.answer == " ".join(best) == found.samples.texts[3]
    gaps = [np.sort(row)[-1] - np.sort(row)[-2] for row in table]
    assert found.samples.answer_margins[:LENGTH] == pytest.approx(gaps)
    assert (found.prompt_tokens, found.truncated) == (10, [False] * 6)


def test_a_call_holds_what_was_asked_for(server):
    decoding = Decoding("Q: {question}", 7, top_p=0.9, top_k=3, stop=("\n",))
    model = load(server, decoding)
    server.bodies.clear()
    ask(model, make_query(1, question="a {b}?", history=[("user", "hello")]), n=2)
    judged, drawn = sorted(server.bodies, key=lambda body: body["temperature"])
    first, second = judged["messages"]
    assert first == {"role": "user", "content": "hello"}
    picture, text = second["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text == {"type": "text", "text": "Q: a {b}?"}
    assert judged["temperature"] == 0.0
    assert "n" not in judged
    assert drawn["n"] == 2
    assert "seed" not in drawn
    for body in (judged, drawn):
        assert (body["max_tokens"], body["top_p"], body["top_k"]) == (7, 0.9, 3)
        assert (body["stop"], body["stream"], body["logprobs"]) == (["\n"], False, True)
    server.bodies.clear()
    ask(model, text_query(question="a?"), n=2)
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "Q: a?"}]


def test_the_model_is_sampled_as_it_is_unless_it_is_told_otherwise(server):
    ask(load(server))
    plain = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert plain.items() <= server.bodies[-1].items()
    server.skills["top_k"] = "no"
    with pytest.raises(InputError, match="takes no top_k; got 3"):
        load(server, Decoding(top_k=3))


@pytest.mark.parametrize(("n", "calls"), [("yes", 1 + 5), ("ignored", 1 + 10), ("no", 1 + 10)])
def test_equal_temperatures_come_of_one_call_where_the_server_can(server, n, calls):
    server.skills["n"] = n
    model = load(server)
    server.bodies.clear()
    found = ask(model, n=10, heat=stratified(10))
    assert (found.error, len(server.bodies)) == (None, calls)
    assert sorted(found.temperatures) == sorted(stratified(10))
    greedy = [body for body in server.bodies if body["temperature"] == 0.0]
    assert len(greedy) == 1


def test_single_calls_have_seeds_of_their_own_and_keep_them(server):
    server.skills["n"] = "ignored"
    one, two, other = (ask(load(server), n=8, heat=constant(8, 2.0), seed=s) for s in (1, 1, 2))
    assert one.samples.texts == two.samples.texts != other.samples.texts
    assert one.samples.n_distinct > 1


def test_samples_at_temperature_0_are_one_call_also_beside_a_drawn_answer(server):
    model = load(server, Decoding(answer_temperature=1.0))
    server.bodies.clear()
    found = ask(model, n=4, heat=np.zeros(4))
    assert (len(server.bodies), found.samples.n_distinct) == (2, 1)


def test_log_probabilities_that_follow_the_temperature_are_not_used(server, caplog):
    server.scale = True
    model = load(server)
    assert not model.capabilities.logprobs
    assert not model.gives.top_logprobs
    assert "follow the temperature" in caplog.text
    assert ask(model).samples.token_logprobs is None


def test_answers_that_never_vary_are_said(server, caplog):
    """A server that takes a temperature and heeds none."""
    server.skills |= {"n": "ignored", "top_logprobs": "ignored"}
    server.frozen = True
    model = load(server)
    assert not model.gives.varies
    assert len(server.bodies) == 5  # four answers, one picture
    assert "it seems to ignore the temperature" in caplog.text
    server.frozen = False
    assert load(server).gives.varies


def test_a_server_without_pictures_answers_the_rest(server):
    server.skills["images"] = "no"
    model = load(server)
    bad, good = model.sample([make_query(0), text_query()], 2, constant(2), seed=0)
    assert "takes no pictures" in bad.error
    assert good.error is None


# --------------------------------------------------------------------------------- one fault each


@contextmanager
def hurried(model, fault):
    """Silence is not waited for long."""
    usual = model.service.limits
    if fault == "silence":
        model.service.limits = replace(usual, timeout=0.3)
    yield
    model.service.limits = usual


DOWN = "Tried 3 times"
TABLE = {
    # fault: what became of the query, calls if each is made alone
    "401": ("HTTP 401 .no such key.: there is no key. Set FUSEVLM_API_KEY or OPENAI_API_KEY", 1),
    "403": ("HTTP 403 .*Set FUSEVLM_API_KEY", 1),
    "404": ("HTTP 404 .gone.: the model or the address is not there", 1),
    "429": (f"HTTP 429 .slow down.: too many calls: set per_minute.*{DOWN}", 3),
    "quota": ("quota is used up", 1),
    "500": (f"HTTP 500 .oops.: the server failed.*{DOWN}", 3),
    "503": (f"Loading model.*{DOWN}", 3),
    "302": ("sends elsewhere", 1),
    "projector": ("the picture was refused: HTTP 500 .*mmproj", 1),
    "picture": ("the picture was refused: HTTP 400 .cannot decode image", 1),
    "too long": ("^HTTP 400 .the context has 10 tokens.: the server refused the call", 1),
    "silence": (f"no answer within timeout = 0.3 s.*{DOWN}", 3),
    "hang up": (f"the connection to http.*failed.*{DOWN}", 3),
    "half": (f"broke off in the middle.*{DOWN}", 3),
    "not json": ("not JSON .*begins with: <html>busy</html>.*OpenAI-compatible", 1),
    "list": ("a JSON list, not an object", 1),
    "error inside": ("the server refused: upstream", 1),
    "no choices": ("has no choices", 1),
    "no message": ("has no message", 1),
    "number": ("content is a int, not a text", 1),
    "stream": ("sent a stream .text/event-stream. though none was asked for", 1),
    "no logprobs": ("came without the log-probabilities that were asked for", 1),
    "fewer logprobs": ("the 2 log-probabilities do not belong to the answer", 1),
    "more logprobs": ("the 6 log-probabilities do not belong to the answer", 1),
    "null logprob": ("is not a number", 1),
    "positive logprob": ("is 0.5; log-probabilities are at most 0", 1),
    "filtered": ("refused to answer: content_filter", 1),
    "refused": ("refused to answer: I can't say.", 1),
    "empty": ("the judged answer is empty", 1),
    "thinking": ("all 5 tokens were used up before any answer.*Raise max_new_tokens", 1),
    "one alternative": (None, 2),
    "emoji": (None, 2),
    "pieces": (None, 2),
    "no usage": (None, 2),
    "fewer": (None, 6),
}


@pytest.mark.parametrize("fault", TABLE)
def test_every_fault_is_a_row_with_its_reason(server, fault):
    """The query fails, or is answered all the same; the next one is as if nothing had been."""
    expected, calls = TABLE[fault]
    model = load(server, Decoding(max_new_tokens=5), retries=2, concurrency=1)
    server.break_down(fault)
    with hurried(model, fault):
        found = ask(model, make_query(0))
    if expected is None:
        assert (found.error, len(found.samples)) == (None, 5)
    else:
        assert found.samples is None
        assert re.search(expected, found.error), found.error
    assert len(server.bodies) == calls
    assert not model.service.meter._open
    server.break_down(None)
    assert ask(model, make_query(1)).error is None


def test_no_fault_is_left_out():
    from tests.models.chat_server import FAULTS

    assert set(FAULTS) - {"echo", "no words"} == set(TABLE)


@pytest.mark.parametrize("fault", ["429", "500", "503", "silence", "hang up", "half"])
def test_what_passes_is_tried_again(server, fault):
    model = load(server)
    server.break_down(fault, times=2)
    with hurried(model, fault):
        found = ask(model)
    assert (found.error, len(found.samples)) == (None, 5)
    assert len(server.bodies) == 2 + 2


def test_one_broken_query_leaves_the_others_unharmed(server):
    model = load(server, concurrency=1, retries=0)
    server.break_down("500", times=1)
    queries = [text_query(i) for i in range(3)]
    found = list(model.sample(queries, 2, constant(2), seed=0))
    assert [g.query_id for g in found] == ["t0", "t1", "t2"]
    assert [g.error is None for g in found] == [False, True, True]
    assert len(server.bodies) == 1 + 2 + 2  # the rest of the first query was not paid for


def test_while_a_server_is_down_nothing_waits_for_it(server):
    model = load(server, retries=3, concurrency=1)
    server.break_down("503")
    found = list(model.sample([text_query(i) for i in range(3)], 2, constant(2), seed=0))
    assert all("Loading model" in g.error for g in found)
    assert len(server.bodies) == 4 + 1 + 1
    server.break_down("503", times=1)
    assert ask(model).error is not None
    assert ask(model).error is None
    server.break_down("503", times=1)
    assert ask(model).error is None  # patient again


def test_a_refused_n_is_no_reason_to_fail(server, caplog):
    model = load(server)
    server.skills["n"] = "no"
    server.bodies.clear()
    assert ask(model, n=4).error is None
    assert len(server.bodies) == 1 + 1 + 4
    assert not model.gives.n
    assert "n = 4 was refused; from now on one answer a call" in caplog.text


def test_an_empty_sample_needs_the_log_probability_of_its_eos(server):
    model = load(server, concurrency=1)
    server.next_fault = lambda: "empty" if server.bodies[-1]["temperature"] else None
    found = ask(model, n=3)
    assert found.samples.texts == ("", "", "")
    assert [list(row) for row in found.samples.token_logprobs] == [[EOS]] * 3
    assert found.samples.answer
    model.gives = replace(model.gives, eos=False)
    server.next_fault = lambda: "no words" if server.bodies[-1]["temperature"] else None
    assert "a sample is empty, and the server gives no" in ask(model, n=3).error


def test_broken_characters_are_kept_whole_where_they_can_be(server, tmp_path):
    model = load(server)
    server.break_down("emoji")
    found = ask(model)
    assert found.samples.answer == "\N{GRINNING FACE}\ufffd"
    assert len(found.samples.answer_logprobs) == LENGTH + 1
    parts = Parts(tmp_path, KIND)
    sample_parts(parts, model, [text_query()], constant(2), batch=1)
    (stored,) = read_generations(tmp_path)
    assert stored.samples.answer == found.samples.answer


def test_a_margin_that_is_not_given_is_not_made_up(server):
    model = load(server)
    server.break_down("one alternative")
    found = ask(model)
    assert (found.error, found.samples.answer_margins) == (None, None)


def test_margins_are_of_the_two_best_whatever_was_drawn(server):
    """Also where a server lists the drawn token instead of one of the best (vLLM does)."""
    model = load(server, Decoding(answer_temperature=4.0))
    drawn = 0
    for seed in range(6):
        found = ask(model, seed=seed)
        table = [logprobs(server.bodies[-1]["messages"], step) for step in range(LENGTH)]
        gaps = [np.sort(row)[-1] - np.sort(row)[-2] for row in table]
        assert found.samples.answer_margins[:LENGTH] == pytest.approx(gaps)
        drawn += any(
            v < np.sort(r)[-3] for v, r in zip(found.samples.answer_logprobs, table, strict=False)
        )
    assert drawn  # one that is none of the three best
    two = {"logprob": -3.0, "top_logprobs": [{"logprob": -3.0}, {"logprob": -0.5}]}
    assert best_gap(two) is None
    assert best_gap({**two, "logprob": -0.5}) == 2.5


def test_tokens_spell_a_text_or_do_not():
    def listed(*tokens):
        return [{"token": t, "bytes": None} for t in tokens]

    assert spells(listed(" re", "d"), "red")
    assert spells(listed("re", "d", "</s>"), "red")
    assert spells(listed("the", "\u2581red", "cat", "</s>"), "the red cat")
    assert not spells(listed("re", "d", "der"), "re")
    assert spells(listed("re", "d", "der", "STOP"), "re", stop=["d"])
    assert spells([{"token": "?", "bytes": [0xF0, 0x9F]}, *listed("x")], "anything")
    assert spells([{"token": "x", "bytes": [999]}], "anything")


# ------------------------------------------------------------------------------- at the beginning


@pytest.mark.parametrize(
    ("fault", "message"),
    [("401", "there is no key. Set FUSEVLM_API_KEY or OPENAI_API_KEY"),
     ("not json", "not JSON"), ("stream", "sent a stream"), ("no choices", "has no choices"),
     ("number", "not a text"), ("null logprob", "not a number"),
     ("too long", "the context has 10 tokens"), ("silence", "no answer within timeout"),
     ("500", "Tried 2 times")],
)  # fmt: skip
def test_a_server_that_cannot_be_used_is_refused_when_it_is_loaded(server, fault, message):
    server.fault = fault
    with pytest.raises(InputError, match=f"cannot use 'toy' at http.*{message}"):
        load(server, retries=1, timeout=0.2 if fault == "silence" else 30)


def test_a_model_that_is_not_there_is_refused_with_those_that_are(server):
    with pytest.raises(InputError, match="Did you mean 'toy'"):
        load(server, name="toyy")
    with pytest.raises(InputError, match="Known are: toy, other"):
        load(server, name="gpt-4o")


def test_a_server_that_is_not_there_is_said_at_once():
    with serving() as server:
        url = server.url
    begun = time.monotonic()
    with pytest.raises(InputError, match=f"nothing listens at {url}. Start the server"):
        load_model(f"openai:toy@{url}")
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("source", "message"),
    [("toy", "named openai:NAME@BASE_URL"), ("toy@localhost:8000", "named openai:NAME@BASE_URL"),
     ("toy@http://", "named openai:NAME@BASE_URL"), ("toy@http:///v1", "cannot be read"),
     ("toy@http://host:port/v1", "cannot be read"), ("toy@http://a b/v1", "cannot be read"),
     (f"toy@http://me:{SECRET}@host/v1", "a user, a password or a query"),
     (f"toy@http://host/v1?key={SECRET}", "Put the key into FUSEVLM_API_KEY")],
)  # fmt: skip
def test_how_a_source_is_read(source, message):
    with pytest.raises(InputError, match=message) as found:
        load_model(f"openai:{source}")
    assert SECRET not in str(found.value)


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"retries": -1}, {"concurrency": 0}, {"max_calls": 0}]
)
def test_limits_are_checked(server, options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is "):
        load(server, **options)


# --------------------------------------------------------------------------------------- the key


@pytest.mark.parametrize("name", KEYS)
def test_the_key_is_sent_and_never_told(server, name, monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(name, SECRET + "\n")
    model = load(server, retries=1)
    parts = Parts(tmp_path, KIND)
    sample_parts(parts, model, [text_query(0)], constant(2), batch=1)
    assert set(server.keys) == {f"Bearer {SECRET}"}
    server.break_down("echo")
    failed = ask(model)
    assert f"the key in {name} is not accepted" in failed.error
    with pytest.raises(InputError) as refused:
        load(server)
    told = [failed.error, repr(failed), caplog.text, json.dumps(model.describe()), model.name,
            repr(vars(model)), repr(vars(model.service)), repr(model.service.meter),
            str(refused.getrepr(showlocals=False))]  # fmt: skip
    told += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    cause = refused.value
    while cause is not None:
        told.append(repr(cause) + repr(vars(cause)))
        cause = cause.__cause__
    for text in told:
        assert SECRET not in text
        assert SECRET[-6:] not in text


def test_words_are_cleared_of_any_key(monkeypatch):
    monkeypatch.setenv(KEYS[0], "abc123")
    assert cleared("abc123 is wrong,\n  so is sk-proj-****wxyz") == "[key] is wrong, so is [key]"
    assert len(cleared("x" * 1000)) < 400


def test_a_key_that_cannot_be_one_is_refused_unseen(server, monkeypatch):
    monkeypatch.setenv(KEYS[0], "two\nlines")
    with pytest.raises(InputError, match="FUSEVLM_API_KEY holds characters") as found:
        load(server)
    assert "lines" not in str(found.value).replace("line breaks", "")


def test_the_first_of_two_keys_counts(server, monkeypatch):
    monkeypatch.setenv(KEYS[1], "second")
    monkeypatch.setenv(KEYS[0], "first")
    load(server)
    assert set(server.keys) == {"Bearer first"}


def test_without_a_key_none_is_sent(server):
    load(server)
    assert set(server.keys) == {None}


# ------------------------------------------------------------------------- pace, patience, budget


def retry_in(seconds):
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def test_a_server_is_given_the_time_it_asks_for(server):
    model = load(server, concurrency=4)
    server.break_down("429", times=1, Retry_After="0.15")
    assert ask(model).error is None
    first, *later = sorted(server.starts)
    assert later[-1] - first >= 0.15
    server.break_down("429", times=1, Retry_After=retry_in(-5))
    assert ask(model).error is None
    server.break_down("503", Retry_After=retry_in(3600))
    assert "It asks to wait 3" in (error := ask(model).error)
    assert "longer than max_wait = 60. Run again later" in error


def test_calls_keep_their_distance(server):
    model = load(server, per_minute=3000)  # every 20 ms
    server.skills["n"] = "ignored"
    server.break_down(None)
    begun = time.monotonic()
    assert ask(model, n=6).error is None
    assert len(server.starts) == 1 + 6
    assert time.monotonic() - begun >= 0.02 * 6


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_calls_at_a_time_than_are_allowed(server, concurrency):
    server.skills["n"] = "ignored"
    model = load(server, concurrency=concurrency)
    server.pause, server.most = 0.03, 0
    list(model.sample([text_query(i) for i in range(3)], 4, constant(4), seed=0))
    assert min(2, concurrency) <= server.most <= concurrency


def test_a_budget_of_calls_is_kept_and_whole_queries_are_paid(server):
    model = load(server)
    probed = model.describe()["calls"]
    assert probed == len(server.bodies) == 3
    model = load(server, max_calls=probed + 5)
    server.bodies.clear()
    found = list(model.sample([text_query(i) for i in range(4)], 3, constant(3), seed=0))
    assert [g.error is None for g in found] == [True, True, False, False]
    assert "the budget max_calls = 8 is used up" in found[2].error
    assert "Allow more: --max-calls, or server.max_calls in the config" in found[2].error
    assert found[2].passing
    assert model.halted == found[3].error
    assert len(server.bodies) == 4
    assert model.describe()["calls"] == probed + 4
    with pytest.raises(InputError, match="max_calls = 2 is used up"):
        load(server, max_calls=2)


def test_what_was_kept_for_queries_that_nobody_waited_for_is_free_again(server):
    model = load(server, max_calls=3 + 6, concurrency=1)
    server.pause = 0.05
    with closing(model.sample([text_query(i) for i in range(3)], 3, constant(3), seed=0)) as drawn:
        assert next(drawn).error is None
    used = model.describe()["calls"]
    assert used < 9
    for i in range(10, 10 + (9 - used) // 2):
        assert ask(model, query=text_query(i), n=3).error is None


def test_retries_count_too(server):
    model = load(server, max_calls=3 + 3, concurrency=1)
    server.break_down("500")
    assert "max_calls = 6 is used up" in ask(model).error
    assert len(server.bodies) == 3


def tokens_of(model):
    used = model.describe()
    return used["prompt_tokens"] + used["answer_tokens"]


def test_a_budget_of_money_is_kept(server):
    """Prompts and answers have prices of their own."""
    prices = {"price_prompt": 1e6, "price_answer": 1e7}  # 1 and 10 a token
    model = load(server, Decoding(max_new_tokens=3), **prices)
    used = model.describe()
    assert used["cost"] == used["prompt_tokens"] + 10 * used["answer_tokens"] > 0
    need = 2 * 10 + 10 * 4 * 3  # two calls, four answers
    model = load(server, Decoding(max_new_tokens=3), **prices, max_cost=used["cost"] + need)
    one, two = model.sample([text_query(i) for i in range(2)], 3, constant(3), seed=0)
    assert one.error is None
    assert "the budget max_cost" in two.error
    assert model.describe()["cost"] == used["cost"] + need
    with pytest.raises(InputError, match="max_cost needs prices"):
        load(server, max_cost=1.0)


def test_a_budget_of_tokens_is_kept(server):
    used = tokens_of(load(server))
    decoding = Decoding(max_new_tokens=3)
    need = 2 * 10 + 4 * 3  # two calls, four answers
    model = load(server, decoding, max_tokens=used + 2 * need)
    found = list(model.sample([text_query(i) for i in range(3)], 3, constant(3), seed=0))
    assert [g.error is None for g in found] == [True, True, False]
    assert "max_tokens" in found[2].error
    assert tokens_of(model) == used + 2 * need
    assert ask(model).error is not None


def test_tokens_that_a_server_does_not_count_are_counted(server):
    model = load(server, Decoding(max_new_tokens=5))
    before = tokens_of(model)
    server.break_down("no usage")
    ask(model, n=4)
    assert tokens_of(model) == before + 5 * 5


def test_a_meter_keeps_what_it_promised():
    meter = Meter(ServerConfig(max_calls=10, max_tokens=100), longest_prompt=5)
    one = meter.promise(6, answers=3, tokens=10)
    assert (one.calls, one.prompt, one.answer) == (6, 30, 30)
    with pytest.raises(BudgetError, match="6 kept for queries under way, 5 wanted"):
        meter.promise(5, 0, 0)
    with pytest.raises(BudgetError, match="max_tokens = 100 is used up: 0 used, 60 kept"):
        meter.promise(1, 4, 10)
    meter.send(one)
    meter.count(one, 5, 15)
    assert (one.calls, one.prompt, one.answer) == (5, 25, 15)
    assert (meter.calls, meter.tokens) == (1, 20)
    meter.withdraw(one)
    assert meter.promise(9, 5, 7).calls == 9


def test_what_nobody_waits_for_is_not_called(server):
    server.skills["n"] = "ignored"
    model = load(server, concurrency=2)
    server.bodies.clear()
    server.pause = 0.02
    found = model.sample([text_query(i) for i in range(20)], 10, constant(10), seed=0)
    next(found)
    found.close()
    assert len(server.bodies) < 110  # of 220


# -------------------------------------------------------------------------------------- in a run


def test_a_run_goes_on_without_paying_twice(server, tmp_path):
    queries = [make_query(i) for i in range(5)]
    calls = 2  # of a query at one temperature
    parts = Parts(tmp_path, KIND)
    model = load(server, concurrency=1)
    server.bodies.clear()

    def stop(done, total, note=""):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample_parts(parts, model, queries, constant(3), batch=2, progress=stop)
    assert len(server.bodies) == 2 * calls
    sample_parts(Parts(tmp_path, KIND), model, queries, constant(3), batch=2)
    assert len(server.bodies) == 5 * calls
    stored = list(read_generations(tmp_path))
    assert [g.query_id for g in stored] == [q.id for q in queries]
    assert all(g.error is None and g.samples.answer_margins is not None for g in stored)


CONFIG = """
[data]
source = "files"
test = "queries.jsonl"
[sample]
model = "openai:toy@{url}"
n = 5
batch = 2
"""


def test_the_stage_of_a_run_notes_what_the_server_gave(server, tmp_path, capsys):
    for i in range(4):
        make_picture(i).save(tmp_path / f"{i}.png")
    rows = [{"id": f"v{i}", "question": "what colour", "image": f"{i}.png"} for i in range(4)]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.toml").write_text(CONFIG.format(url=server.url))
    words = ["sample", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run")]
    assert main(words) == 0
    calls = 3 + 4 * (1 + 5)
    assert len(server.bodies) == calls
    noted = json.loads((tmp_path / "run" / "sample" / "server.json").read_bytes())
    assert (noted["model"], noted["n"], noted["eos"]) == ("toy-1", True, True)
    assert noted["calls"] == calls
    counts = read_manifest(tmp_path / "run", "sample").counts
    assert (counts["calls"], counts["failed"]) == (calls, 0)
    assert counts["tokens"] == noted["prompt_tokens"] + noted["answer_tokens"]
    assert main(words) == 0
    assert len(server.bodies) == calls  # done before: not even a probe
    run = tmp_path / "run"
    later = {**read_server(run, "sample"), "calls": calls + 50}
    save_sealed(run / "semantics" / "server.json", later)
    again = open_maker(Work(run, read_run(run), lambda *_: None))  # failed queries, asked again
    assert again.told()["server"]["calls"] == calls + 50  # the budget is that of the run


def test_what_was_used_and_found_out_before_counts_in_the_next_session(server, tmp_path):
    """The server is not probed again, and the budget is that of all sessions together."""
    first = load(server, max_calls=20)
    note_server(tmp_path / "sample", first)
    before = read_server(tmp_path, "sample", "semantics")
    server.bodies.clear()
    again = load(server, max_calls=20, before=before)
    assert (again.gives, again.describe()) == (first.gives, first.describe())
    assert not server.bodies  # a free GET at most
    assert [
        g.error is None
        for g in again.sample([text_query(i) for i in range(10)], 2, constant(2), seed=0)
    ] == [True] * 8 + [False] * 2
    note_server(tmp_path / "none", Toy())
    assert read_server(tmp_path, "none") == {}
    with serving() as gone:
        url = gone.url
    with pytest.raises(InputError, match="nothing listens"):
        load_model(f"openai:toy@{url}", offered={"before": before})


# ---------------------------------------------------------------------- what is paid is never lost


def journalled(server, tmp_path, **options):
    model = load(server, **options)
    model.journal = Journal(tmp_path / "calls.jsonl")
    server.bodies.clear()
    return model


def texts_of(found):
    return found.samples.answer, found.samples.texts, [*map(list, found.samples.token_logprobs)]


@pytest.mark.parametrize("n", ["yes", "ignored"])
def test_answers_of_a_failed_query_are_kept_and_only_the_rest_is_paid_for(server, tmp_path, n):
    server.skills["n"] = n
    model = journalled(server, tmp_path, concurrency=1, retries=0)
    query, heat = make_query(0), stratified(10)
    whole = ask(model, query, n=10, heat=heat)
    all_calls = len(server.bodies)
    for broken in range(all_calls):
        model.journal = Journal(tmp_path / f"{broken}.jsonl")
        server.break_down(None)
        server.skip = broken  # the call after so many fails
        server.fault, server.times = "500", 1
        assert ask(model, query, n=10, heat=heat).passing
        assert len(server.bodies) == broken + 1
        server.break_down(None)
        model.journal = Journal(tmp_path / f"{broken}.jsonl")  # as after a kill
        found = ask(model, query, n=10, heat=heat)
        assert found.error is None
        assert len(server.bodies) == all_calls - broken
        assert found.samples.answer == whole.samples.answer
        assert found.prompt_tokens == 10
        if n == "ignored":  # single calls have seeds of their own
            assert texts_of(found) == texts_of(whole)


def test_a_journal_knows_what_an_answer_depends_on(server, tmp_path):
    model = journalled(server, tmp_path)
    query = text_query(1)
    first = ask(model, query)
    calls = len(server.bodies)
    assert texts_of(ask(model, query)) == texts_of(first)
    assert len(server.bodies) == calls
    for other, seed in ((replace(query, question="else?"), 0), (replace(query, id="x"), 0),
                        (query, 1)):  # fmt: skip
        before = len(server.bodies)
        ask(model, other, seed=seed)
        assert len(server.bodies) == before + calls
    model.decoding = replace(model.decoding, max_new_tokens=7)
    before = len(server.bodies)
    ask(model, query)
    assert len(server.bodies) == before + calls


@pytest.mark.parametrize("fault", ["refused", "empty", "null logprob", "positive logprob"])
def test_what_cannot_be_used_is_asked_for_again(server, tmp_path, fault):
    model = journalled(server, tmp_path, concurrency=1)
    server.break_down(fault, times=1)
    assert ask(model).passing
    assert len(model.journal) == 0
    assert ask(model).error is None


def test_a_run_stops_where_the_budget_ends_and_goes_on_with_a_larger_one(server, tmp_path, capsys):
    rows = [{"id": f"v{i}", "question": f"what colour {i}"} for i in range(6)]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.toml").write_text(CONFIG.format(url=server.url))
    words = ["sample", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run")]
    each = 1 + 5
    assert main([*words, "--max-calls", str(3 + 3 * each + 2)]) == 1
    said = capsys.readouterr().err
    assert "sample stopped: the budget max_calls = 23 is used up" in said
    assert "give the same command again" in said
    assert len(server.bodies) == 3 + 3 * each
    assert main([*words, "--max-calls", "100"]) == 0
    assert len(server.bodies) == 3 + 6 * each
    assert not list((tmp_path / "run" / "sample").glob("*.calls.jsonl"))
    assert read_manifest(tmp_path / "run", "sample").counts["failed"] == 0


def test_a_run_stops_where_the_server_is_gone_and_goes_on_when_it_is_back(server, tmp_path, capsys):
    rows = [{"id": f"v{i}", "question": f"what colour {i}"} for i in range(6)]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.toml").write_text(CONFIG.format(url=server.url))
    words = ["sample", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run"),
             "--set", "server.retries=0", "--set", "server.concurrency=1"]  # fmt: skip
    server.skip, server.fault = 3 + 2 * 6 + 4, "503"  # in the midst of the third query
    assert main(words) == 1
    assert "sample stopped: HTTP 503 (Loading model)" in capsys.readouterr().err
    server.break_down(None)
    assert main(words) == 0
    assert len(server.bodies) == 3 * 6 - 4 + 1 * 6  # what the third had is kept
    found = list(read_generations(tmp_path / "run" / "sample"))
    assert [g.query_id for g in found] == [f"test/v{i}" for i in range(6)]
    assert all(g.error is None for g in found)


def test_a_refused_query_is_asked_again_by_the_next_run(server, tmp_path, capsys):
    rows = [{"id": f"v{i}", "question": f"what colour {i}"} for i in range(4)]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.toml").write_text(CONFIG.format(url=server.url))
    words = ["sample", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run"),
             "--set", "server.concurrency=1"]  # fmt: skip
    server.skip, server.fault, server.times = 3 + 6, "refused", 1
    assert main(words) == 3
    stored = list(read_generations(tmp_path / "run" / "sample"))
    assert [g.error is None for g in stored] == [True, False, True, True]
    assert "refused to answer: I can't say." in stored[1].error
    server.break_down(None)
    assert main(words) == 0
    assert len(server.bodies) == 6
    assert "1 failed query may be tried again" in capsys.readouterr().err
    again = list(read_generations(tmp_path / "run" / "sample"))
    assert all(g.error is None for g in again)
    for k in (0, 2, 3):
        assert texts_of(again[k]) == texts_of(stored[k])


def test_samples_without_hidden_states_are_read_as_such(server, tmp_path):
    sample_parts(Parts(tmp_path, KIND), load(server), [text_query()], constant(2), batch=1)
    (found,) = read_generations(tmp_path, "last", layers=["middle"], answers=["last"])
    assert found.samples.embeddings is None
    assert not found.layers
    assert found.samples.token_logprobs is not None


@pytest.mark.slow
def test_a_whole_run_over_http(server, tmp_path):
    (tmp_path / "own.toml").write_text(
        "[data]\nn_calibration = 40\nn_test = 20\nunit = 'image_id'\n"
        f"[sample]\nmodel = 'openai:toy@{server.url}'\nn = 5\n"
        "[calibrate]\nmethods = ['practical']\n[evaluate]\nbootstrap = 10\n"
    )
    assert main(["run", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run")]) == 0
    assert len(server.bodies) == 3 + 60 * 6
    absent = json.loads((tmp_path / "run" / "score" / "absent.json").read_bytes())
    assert {"eigenscore", "mahalanobis"} <= set(absent)
    assert "g_nll" not in absent


def test_the_ten_lines_of_the_docs_run(server, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "api-models.md").read_text()
    (lines,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(lines.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    make_picture(0).save("cat.jpg")
    rows = [f"what is it {k}?,{'red' if k % 2 else 'never'},cat.jpg" for k in range(12)]
    Path("labelled.csv").write_text("\n".join(["question,references,image", *rows]))
    source = "openai:NAME@http://localhost:8000/v1"
    assert source in lines
    exec(compile(lines.replace(source, f"openai:toy@{server.url}"), "docs", "exec"), {})
    printed = capsys.readouterr().out
    assert "10 samples: " in printed
    assert "P(wrong)" in printed
    assert f"'calls': {3 + 13 * 2}" in printed  # the probe; the answer, and all samples at once
