"""vLLM keeps the contract, and gives what Hugging Face gives: ``make test-vllm``."""

import logging

import numpy as np
import pytest

pytest.importorskip("vllm.platforms", reason="vLLM has an environment of its own: make test-vllm")

from tests.models.conftest import make_picture, make_query

from fusevlm.cli import main
from fusevlm.errors import InputError
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model
from fusevlm.models.temperatures import stratified
from fusevlm.testing import oracle, tiny
from fusevlm.testing.contract import run_contract

N = 6
HEAT = stratified(N)
SIZES = {"hidden_size": 128, "intermediate_size": 128, "max_position_embeddings": 1024}  # heads: 32
VLMS = ("llava", "qwen2_5_vl", "embedded")
MODELS = (*VLMS, "llama")
SMALL = {"dtype": "float32", "kv_cache_memory_bytes": 2**27, "max_model_len": 400}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    made = {f: tiny.save(f, home / f, **SIZES) for f in MODELS if f != "embedded"}
    return {**made, "embedded": "embedded"}


@pytest.fixture(scope="module", params=MODELS)
def pair(request, folders):
    """The same model through both."""
    where, decoding = folders[request.param], Decoding(max_new_tokens=5)
    ours = load_model(where, decoding, dtype="float32")
    return request.param, ours, load_model(f"vllm:{where}", decoding, **SMALL)


def queries(name, count=8):
    # a size that Qwen's processors, of which vLLM has another, need not scale
    shown = [() if name == "llama" else (make_picture(i, size=(48, 48)),) for i in range(count)]
    return [make_query(i, images=images) for i, images in enumerate(shown)]


def test_every_promise_is_kept(pair):
    name, _, vllm = pair
    outcomes = run_contract(vllm, queries(name, 4), n=N)
    left = {"forward_pass"} | ({"images", "bad_query"} if name == "llama" else set())
    assert [(o.name, o.detail) for o in outcomes if o.failed] == []
    assert {o.name for o in outcomes if o.skipped} <= left


def test_numbers_are_those_of_a_teacher_forced_pass(pair):
    """transformers' own forward pass over prompt and answer: 1e-4."""
    name, ours, vllm = pair
    asked = queries(name)
    apart, compared, cut = 0.0, 0, set()
    for query, found in zip(asked, vllm.sample(asked, N, HEAT, 1), strict=True):
        assert found.error is None
        assert found.path == "vllm_hooks"
        cut |= set(found.truncated)
        for what, one, two in oracle.compare(ours, query, found):
            np.testing.assert_allclose(
                one, two, atol=1e-4 * max(1, np.abs(two).max()), err_msg=what
            )
            apart, compared = max(apart, float(np.abs(one - two).max())), compared + 1
    assert compared > 40
    assert True in cut or name == "embedded"
    print(f"\n{name}: {compared} arrays, at most {apart:.1e} apart")


def test_samples_are_those_of_hugging_face(pair):
    name, ours, vllm = pair
    asked = queries(name)
    for one, two in zip(*(list(m.sample(asked, N, HEAT, 7)) for m in (ours, vllm)), strict=True):
        assert one.prompt_tokens == two.prompt_tokens
        if one.n_near_boundary == two.n_near_boundary == 0:
            assert one.token_ids == two.token_ids
            assert one.samples.texts == two.samples.texts
            assert one.truncated == two.truncated
            for row, other in zip(one.warped_logprobs, two.warped_logprobs, strict=True):
                np.testing.assert_allclose(row, other, atol=1e-4)


def test_weights_stay_as_they_are_stored(folders):
    """vLLM's own "auto" would compute a model of float32 in half precision."""
    model = load_model(f"vllm:{folders['llava']}", Decoding(max_new_tokens=2), max_model_len=200)
    assert str(model.engine.llm_engine.model_config.dtype) == "torch.float32"


def changed(folders, **options):
    decoding = Decoding(max_new_tokens=5, **options.pop("decoding", {}))
    return load_model(f"vllm:{folders['llava']}", decoding, **{**SMALL, **options})


def same(one, two):
    for a, b in zip(one, two, strict=True):
        assert a.token_ids == b.token_ids
        assert a.answer_token_ids == b.answer_token_ids
        for name in a.layers:
            np.testing.assert_allclose(a.layers[name], b.layers[name], atol=1e-4)
            np.testing.assert_allclose(a.prompt_layers[name], b.prompt_layers[name], atol=1e-4)


@pytest.fixture(scope="module")
def usual(folders):
    return list(changed(folders).sample(queries("llava"), N, HEAT, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"decoding": {"path": "second_pass"}},
        {"max_num_batched_tokens": 32, "enable_chunked_prefill": True},  # prompts in pieces
        {"max_num_seqs": 3},  # rows come and go
        {"enable_prefix_caching": False},
        {"block_size": 128},
    ],
)
def test_other_ways_give_the_same(folders, usual, options):
    same(usual, list(changed(folders, **options).sample(queries("llava"), N, HEAT, 1)))


def test_rows_that_are_put_off_for_want_of_memory_are_the_same(folders, usual):
    """So few blocks that vLLM preempts requests and computes them again."""
    model = changed(folders, kv_cache_memory_bytes=40 * 32 * 1024, max_model_len=64)
    same(usual, list(model.sample(queries("llava"), N, HEAT, 1)))


def test_stop_strings_end_answers_as_they_do_elsewhere(folders):
    decoding = {"stop": ("red", "no")}
    vllm = changed(folders, decoding=decoding)
    ours = load_model(folders["llava"], vllm.decoding, dtype="float32")
    asked = queries("llava")
    one, two = (list(m.sample(asked, N, HEAT, 1)) for m in (ours, vllm))
    same(one, two)
    assert [g.samples.texts for g in one] == [g.samples.texts for g in two]


def test_one_bad_query_spoils_no_other(folders, usual, caplog):
    model = changed(folders)
    bad = [
        make_query(20, question="what is <image> here"),
        make_query(21, question="red " * 500),
        make_query(22, images=[b"nothing"]),
    ]
    with caplog.at_level(logging.ERROR):
        found = list(model.sample([*queries("llava", 2), *bad], N, HEAT, 1))
    same(usual[:2], found[:2])
    said = [g.error for g in found[2:]]
    assert "mark of its own" in said[0]
    assert "400" in said[1]
    assert "not a picture" in said[2]


def test_what_cannot_be_is_refused(folders, tmp_path):
    with pytest.raises(InputError, match="vLLM keeps the prompt's cache itself"):
        changed(folders, decoding={"path": "repeated_cache"})
    with pytest.raises(InputError, match="vLLM cannot load"):
        load_model(f"vllm:{tmp_path}")
    with pytest.raises(InputError, match="path is 'second_pass', which is vLLM's"):
        load_model(folders["llava"], Decoding(path="second_pass"))


def test_a_run_from_the_file_to_the_table(folders, tmp_path, capsys):
    from tests.pipeline.tiny_models import save_queries

    save_queries(tmp_path, ["red"] * 7 + ["blue"])
    (tmp_path / "own.toml").write_text(f"""
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
[sample]
model = "vllm:{folders["llava"]}"
dtype = "float32"
n = 4
max_new_tokens = 4
[vllm]
cache_gb = 0.1
max_model_len = 200
max_num_seqs = 7
gpu_memory_utilization = 0.3
[embed]
towers = "none"
[adapter]
source = "none"
[calibrate]
methods = ["practical", "umpire"]
[evaluate]
bootstrap = 20
[report]
figures = []
pdf = false
""")
    words = ["run", str(tmp_path / "own.toml"), "--run", str(tmp_path / "run")]
    assert main(words) == 0, capsys.readouterr().err
    assert "umpire" in capsys.readouterr().out
