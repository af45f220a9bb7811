"""A language model without pictures, from the file to the table and to a question asked."""

import json
import re

import numpy as np
import pytest
from tests.models.chat_server import serving
from tests.models.conftest import make_picture, make_query
from tests.models.toy import Toy

import fusevlm
from fusevlm.cli import main
from fusevlm.config import read_config
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model
from fusevlm.models.temperatures import constant
from fusevlm.pipeline.adapter import read_statistics
from fusevlm.pipeline.evaluate import read_results
from fusevlm.pipeline.sample import sample_parts
from fusevlm.pipeline.score import read_table
from fusevlm.settings import SECTIONS
from fusevlm.store.generations import EMBEDDINGS, KIND, read_embeddings, read_generations
from fusevlm.store.parts import Parts, read_parts
from fusevlm.store.runs import read_manifest, read_run
from fusevlm.testing import tiny
from fusevlm.types import Query

CONFIG = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
[sample]
model = "{model}"
n = 4
max_new_tokens = 3
batch = 8
[embed]
towers = "{towers}"
[adapter]
source = "{adapter}"
statistics = {statistics}
[calibrate]
methods = ["practical", "evidence-only", "prior-only", "g_nll"]
[evaluate]
bootstrap = 10
[report]
examples = 2
figures = ["roc", "qualitative"]
pdf = false
"""
GP = '["s_image", "s_text", "disagreement", "reconstruction"]'


def save_tables(folder, answers):
    """40 and 20 questions; half of the ``answers`` are right."""
    words = ("what colour", "how many", "what is the shape", "is the circle red")
    for split, size in {"calibration": 40, "test": 20}.items():
        asked = [f"{words[k % 4]} {'red ' * (k % 5)}{split} {k}" for k in range(size)]
        right = answers(asked)
        rows = [
            {"id": f"{k}", "question": text, "references": [right[k] if k % 2 else "never"]}
            for k, text in enumerate(asked)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    tiny.save("llama", root / "llm")
    model = HuggingFace.load(str(root / "llm"), decoding=Decoding(max_new_tokens=3))

    def answers(asked):
        queries = [Query(str(k), text) for k, text in enumerate(asked)]
        return [g.samples.answer for g in model.sample(queries, 2, np.ones(2), 0)]

    save_tables(root, answers)
    return root


@pytest.mark.parametrize(
    ("name", "towers", "adapter", "statistics", "prior", "inputs"),
    [
        ("clip", "embedded", "embedded", GP, {"s", "s_text", "reconstruction"}, {"text", "prompt"}),
        ("minilm", "minilm", "none", '["mahalanobis_text", "laplace_image"]', {"mahalanobis_text"},
         {"text", "prompt"}),
        ("nothing", "none", "none", "[]", set(), {"prompt"}),
    ],
)  # fmt: skip
def test_a_language_model_from_file_to_table(
    home, name, towers, adapter, statistics, prior, inputs, capsys
):
    text = CONFIG.format(model="llm", towers=towers, adapter=adapter, statistics=statistics)
    (home / f"{name}.toml").write_text(text)
    run = home / f"run-{name}"
    assert main(["run", str(home / f"{name}.toml"), "--run", str(run)]) == 0
    said = capsys.readouterr().err
    assert ("without pictures there is no" in said) == bool(prior)
    results = read_results(run)
    measured = results["slices"][0]["methods"]
    assert {"practical", "evidence-only", "g_nll"} <= set(measured)
    assert ("prior-only" in measured) or ("prior-only" in results["absent"])
    queries, failed = read_table(run, read_run(run), states={"embeddings"})
    assert not failed
    assert len(queries) == 60
    assert set(queries.prior) == prior
    assert set(queries.inputs) == inputs
    assert ("question" in queries.views) == (towers != "none")
    assert "image" not in queries.views
    # the same of a question asked, through the command and in Python
    assistant = fusevlm.load(run)
    found = assistant.ask(None, "how many red", risk=0.6)
    assert 0.0 <= found.p_wrong <= 1.0
    assert main(["ask", "how many red", "--model", str(run), "--risk", "0.6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["u"] == pytest.approx(found.u)


def test_the_statistics_of_texts_are_those_of_the_text_side(home):
    """GP statistics of one modality, against the adapter asked for it alone."""
    from fusevlm.models.registry import model_folder
    from fusevlm.priors.gp.adapter import GpAdapter

    if not (home / "run-clip").is_dir():
        pytest.skip("the run is another test's")
    ids, vectors = read_embeddings(home / "run-clip" / "embed")
    assert list(vectors) == ["text"]
    expected = GpAdapter.load(model_folder("embedded", "adapter")).statistics(text=vectors["text"])
    found = read_statistics(home / "run-clip")
    for name in ("s", "s_text", "latent_distance"):
        values = [found[i][name] for i in ids]
        np.testing.assert_allclose(values, expected[name], rtol=1e-6)
    np.testing.assert_array_equal(expected["s"], expected["s_text"])


def test_a_language_model_refuses_a_picture(home):
    model = load_model(str(home / "llm"))
    assert not model.capabilities.images
    (found,) = model.sample([Query("a", "what", [make_picture(0)])], 2, np.ones(2), 0)
    assert "is a language model: it takes no pictures" in found.error
    assert not found.passing


def test_without_a_template_a_language_model_goes_on_with_plain_text():
    model, tokenizer = tiny.build("llama")
    tokenizer.chat_template = None
    plain = HuggingFace(model, tokenizer, decoding=Decoding("{question} red", 3))
    query = Query("a", "what colour", history=[("user", "how many")])
    found = plain.prepare(query)["input_ids"][0].tolist()
    expected = tokenizer("how many\nwhat colour red")["input_ids"]
    assert found == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["embed.towers=none"], "leaves no vectors for a prior: set adapter.source = 'none'"),
        (["embed.towers=none", "adapter.source=none", "adapter.statistics=['laplace_text']"],
         "leaves no vectors"),
        (["embed.towers=minilm"], "gives image vectors of width 384; .* adapter.source = 'none'"),
        (["embed.towers=minilm", "adapter.source=train", "data.train=['t.jsonl']"],
         "needs towers of images and texts"),
    ],
)  # fmt: skip
def test_towers_and_prior_that_do_not_fit_are_refused(home, changes, message, capsys):
    text = CONFIG.format(model="llm", towers="embedded", adapter="embedded", statistics=GP)
    (home / "bad.toml").write_text(text)
    words = [w for change in changes for w in ("--set", change)]
    assert main(["run", str(home / "bad.toml"), "--run", str(home / "bad"), *words]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (home / "bad" / "data").exists()


def test_a_query_without_a_picture_among_others_fails_alone(tmp_path, capsys):
    make_picture(0).save(tmp_path / "a.png")
    rows = [{"question": "what colour", "image": "a.png"}, {"question": "how many"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.toml").write_text("[data]\nsource = 'files'\ntest = 'q.jsonl'\n")
    words = ["embed", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run")]
    assert main(words) == 3
    (rows,) = [r for r, _ in read_parts(tmp_path / "run" / "embed", EMBEDDINGS)]
    assert rows["error"][0] is None
    assert "Put queries without pictures into a run of their own" in rows["error"][1]


# ----------------------------------------------------------------------- every key of [server]

SERVER = {
    "timeout": 30.0, "retries": 2, "backoff": 0.01, "max_wait": 1.0, "per_minute": 60000.0,
    "concurrency": 3, "max_calls": 2000, "max_tokens": 100000, "max_cost": 5.0,
    "price_prompt": 1.0, "price_answer": 2.0,
}  # fmt: skip


def test_every_key_of_a_server_reaches_the_model(tmp_path, monkeypatch, capsys):
    """No torch is needed: no towers, no adapter; from the file to the table over HTTP."""
    assert set(SERVER) == {f.name for f in SECTIONS["server"].__dataclass_fields__.values()}
    seen = []
    real = load_model

    def noted(*words, **options):
        seen.append(real(*words, **options))
        return seen[-1]

    monkeypatch.setattr("fusevlm.pipeline.sample.load_model", noted)
    with serving() as server:
        toy = load_model(f"openai:toy@{server.url}")

        def answers(asked):
            queries = [Query(str(k), text) for k, text in enumerate(asked)]
            return [g.samples.answer for g in toy.sample(queries, 1, np.ones(1), 0)]

        save_tables(tmp_path, answers)
        server.bodies.clear()
        server.fault, server.times, server.skip = "500", 2, 10
        text = CONFIG.format(
            model=f"openai:toy@{server.url}", towers="none", adapter="none", statistics="[]"
        )
        text += "[server]\n" + "".join(f"{k} = {v}\n" for k, v in SERVER.items())
        text += "[semantics]\ncomplement = 'templates'\nmeanings = 'string'\n"
        (tmp_path / "api.toml").write_text(text)
        words = ["run", str(tmp_path / "api.toml"), "--run", str(tmp_path / "run-api")]
        assert main(words) == 0, capsys.readouterr().err
        assert len(seen) == 2  # in the stages sample and semantics
        limits = {k: getattr(seen[0].service.limits, k) for k in SERVER}
        assert limits == SERVER
        calls = len(server.bodies)
        noted_calls = read_manifest(tmp_path / "run-api", "sample").counts["calls"]
        assert noted_calls <= calls == seen[-1].describe()["calls"]
        assert server.most <= 3
        # nothing of [server] makes a stage stale
        again = [*words, "--set", "server.concurrency=1", "--max-cost", "9"]
        assert main(again) == 0
        assert len(server.bodies) == calls
    results = read_results(tmp_path / "run-api")
    assert "g_nll" in results["slices"][0]["methods"]


def test_a_picture_that_comes_back_is_tried_again(home, tmp_path, capsys):
    """Sampled and embedded then, what rested on it made anew; the rest stays as it was."""
    save_tables(tmp_path, lambda asked: ["red"] * len(asked))
    for split in ("calibration", "test"):
        rows = [json.loads(x) for x in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        for k, row in enumerate(rows):
            make_picture(k + 100 * len(split)).save(tmp_path / f"{split}-{k}.png")
            row["image"] = f"{split}-{k}.png"
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    text = CONFIG.format(model="tiny:llava@1", towers="embedded", adapter="embedded", statistics=GP)
    (tmp_path / "own.toml").write_text(text)
    words = ["run", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run")]
    gone = [tmp_path / f"test-{k}.png" for k in (3, 11)]
    for path in gone:
        path.rename(path.with_suffix(".away"))
    (tmp_path / "test-5.png").write_bytes(b"no picture")
    assert main(words) == 3
    before = {g.query_id: g for g in read_generations(tmp_path / "run" / "sample", "last")}
    assert sum(g.error is not None for g in before.values()) == 3
    assert read_manifest(tmp_path / "run", "sample").counts["passing"] == 2
    capsys.readouterr()
    assert main(words) == 3  # still away: no model is loaded, nothing changes
    said = capsys.readouterr().err
    assert "sample: 2 failed queries may be tried again" in said
    assert "set aside" not in said
    for path in gone:
        path.with_suffix(".away").rename(path)
    assert main(words) == 3  # one is no picture at all
    said = capsys.readouterr().err
    assert "score: set aside as score.old-1" in said
    after = {g.query_id: g for g in read_generations(tmp_path / "run" / "sample", "last")}
    assert list(after) == list(before)
    assert [i for i, g in after.items() if g.error is not None] == ["test/5"]
    for i, g in before.items():
        if g.error is None:
            assert after[i].samples.texts == g.samples.texts
            np.testing.assert_array_equal(after[i].samples.embeddings, g.samples.embeddings)
    _, failed = read_table(tmp_path / "run", read_run(tmp_path / "run"))
    assert list(failed) == ["test/5"]
    # the vectors are those of a run that never failed
    ids, vectors = read_embeddings(tmp_path / "run" / "embed")
    fresh = ["embed", str(tmp_path / "own.toml"), "--run", str(tmp_path / "fresh"), "--quiet"]
    assert main(fresh) == 3
    others, expected = read_embeddings(tmp_path / "fresh" / "embed")
    assert ids == others
    for name in ("image", "text"):
        np.testing.assert_allclose(vectors[name], expected[name], atol=1e-5)
    make_picture(7).save(tmp_path / "test-5.png")
    assert main(words) == 3  # its reason was none that passes
    assert main([*words, "--retry-failed"]) == 0
    assert read_results(tmp_path / "run")["slices"][0]["queries"] == 20


def test_another_batch_size_goes_on_with_the_same_parts(tmp_path):
    queries = [make_query(i) for i in range(11)]

    def stop(done, total, note=""):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample_parts(Parts(tmp_path, KIND), Toy(), queries, constant(3), batch=4, progress=stop)
    sample_parts(Parts(tmp_path, KIND), Toy(), queries, constant(3), batch=2)
    parts = Parts(tmp_path, KIND)
    assert (parts.size, [part["queries"] for part in parts.facts]) == (4, [4, 4, 3])
    assert [g.query_id for g in read_generations(tmp_path)] == [q.id for q in queries]


@pytest.mark.parametrize("model", ["openai:m@http://127.0.0.1:9/v1", "vllm:nothing"])
@pytest.mark.parametrize("change", ["p_true=true", "rephrase=prompt"])
def test_what_a_closed_model_cannot_do_is_refused_first(home, capsys, model, change):
    text = CONFIG.format(model=model, towers="none", adapter="none", statistics="[]")
    (home / "closed.toml").write_text(text)
    words = ["run", str(home / "closed.toml"), "--run", str(home / "closed"), "--set"]
    words += [f"semantics.{change}"]
    assert main(words) == 1
    key = f"semantics.{change.partition('=')[0]}"
    assert f"{key} needs a Hugging Face model" in capsys.readouterr().err
    assert not (home / "closed" / "data").exists()


def test_a_config_with_a_bad_price_is_refused(home):
    (home / "price.toml").write_text("[server]\nmax_cost = 3\n")
    with pytest.raises(InputError, match="max_cost needs prices"):
        read_config(home / "price.toml")
