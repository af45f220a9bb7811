"""Every VLM family keeps the contract: a tiny random model against its own plain forward pass."""

import numpy as np
import pytest
import torch
from tests.models.conftest import make_picture, make_query

from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.temperatures import stratified
from fusevlm.testing import tiny
from fusevlm.testing.contract import CHECKS, run_contract
from fusevlm.testing.oracle import teacher_forced

N = 6
HEAT = stratified(N)


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def family(request):
    model, processor = tiny.build(request.param)
    backend = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=5))
    return request.param, backend


@pytest.fixture(scope="module")
def generations(family):
    _, backend = family
    found = list(backend.sample([make_query(i) for i in range(8)], N, HEAT, seed=1))
    assert [g.error for g in found] == [None] * 8
    return found


def test_every_promise_is_kept(family):
    _, backend = family
    outcomes = run_contract(backend, [make_query(i) for i in (3, 1, 0, 2)], n=N)
    assert [(o.name, o.detail) for o in outcomes if not o.passed] == []
    assert len(outcomes) == len(CHECKS)


def test_every_family_takes_the_shared_prefix(family, generations):
    assert {g.path for g in generations} == {"shared_prefix"}


def test_log_probabilities_are_the_teacher_forced_log_softmax(family, generations):
    _, backend = family
    for i, g in enumerate(generations):
        for tokens, logprobs in zip(g.token_ids, g.samples.token_logprobs, strict=True):
            logits, _ = teacher_forced(backend, make_query(i), tokens)
            log_p = logits.double().log_softmax(dim=-1)
            assert torch.allclose(
                log_p.logsumexp(dim=-1), torch.zeros(len(log_p)).double(), atol=1e-9
            )
            steps = [*tokens, backend.tokenizer.eos_token_id][: len(logprobs)]
            expected = [float(log_p[t, token]) for t, token in enumerate(steps)]
            np.testing.assert_allclose(logprobs, expected, atol=1e-4)


def test_margins_and_prompt_states_are_those_of_transformers_itself(family, generations):
    """One forward pass over prompt and answer with output_hidden_states, the top two by sorting."""
    _, backend = family
    for i, g in enumerate(generations):
        logits, hidden = teacher_forced(backend, make_query(i), g.answer_token_ids)
        log_p = np.sort(logits.double().log_softmax(dim=-1).numpy(), axis=1)
        size = len(g.samples.answer_logprobs)
        np.testing.assert_allclose(
            g.samples.answer_margins, (log_p[:, -1] - log_p[:, -2])[:size], atol=1e-4
        )
        inputs = backend.prepare(make_query(i))
        with torch.inference_mode():
            alone = backend.model(**inputs, output_hidden_states=True).hidden_states
        for name, layer in (("last", -1), ("middle", (len(hidden) - 1) // 2)):
            np.testing.assert_allclose(g.prompt_layers[name], alone[layer][0, -1], atol=1e-4)


def test_next_token_logits_equal_a_plain_forward(family):
    """The logits themselves, at every step of a forced continuation."""
    from fusevlm.models.decode import SharedStep

    _, backend = family
    prompt = backend._prefill(make_query(0))
    tokens = [20, 25, 18, 30]
    expected, _ = teacher_forced(backend, make_query(0), tokens)
    assert torch.allclose(prompt.logits, expected[0], atol=1e-4)
    stepper = SharedStep(backend, [prompt], np.zeros(3, dtype=int))
    with torch.inference_mode():
        for step, token in enumerate(tokens):
            logits = stepper.feed(torch.full((3,), token), np.arange(3), step)
            assert float((logits - expected[step + 1]).abs().max()) <= 1e-4


def test_hidden_states_belong_to_the_last_response_token(family, generations):
    _, backend = family
    depth = len(backend.decoder.layers)
    seen = set()
    for i, g in enumerate(generations):
        for k, tokens in enumerate(g.token_ids):
            _, hidden = teacher_forced(backend, make_query(i), tokens)
            seen.add(g.truncated[k])
            for name, layer in (("last", -1), ("middle", depth // 2)):
                np.testing.assert_allclose(g.layers[name][k], hidden[layer][-1], atol=1e-4)
        np.testing.assert_array_equal(g.samples.embeddings, g.layers["last"])
    assert True in seen  # truncated answers were among them


def test_the_judged_answer_is_greedy_and_not_one_of_the_samples(family, generations):
    _, backend = family
    for i, g in enumerate(generations):
        logits, hidden = teacher_forced(backend, make_query(i), g.answer_token_ids)
        greedy = logits.argmax(dim=-1)[: len(g.answer_token_ids)].tolist()
        assert greedy == list(g.answer_token_ids)
        np.testing.assert_allclose(g.answer_layers["last"], hidden[-1][-1], atol=1e-4)
        assert len(g.samples) == N


def test_the_same_seed_gives_the_same_bytes(family, generations):
    _, backend = family
    again = list(backend.sample([make_query(i) for i in range(8)], N, HEAT, seed=1))
    for one, two in zip(generations, again, strict=True):
        assert one.token_ids == two.token_ids
        for name in one.layers:
            np.testing.assert_array_equal(one.layers[name], two.layers[name])
    other = list(backend.sample([make_query(i) for i in range(8)], N, HEAT, seed=2))
    assert any(a.token_ids != b.token_ids for a, b in zip(generations, other, strict=True))


def test_one_query_at_a_time_gives_the_same_tokens(family, generations):
    _, backend = family
    compared = 0
    for i, batched in enumerate(generations):
        (alone,) = backend.sample([make_query(i)], N, HEAT, seed=1)
        if batched.n_near_boundary == alone.n_near_boundary == 0:
            compared += 1
            assert alone.token_ids == batched.token_ids
            np.testing.assert_allclose(alone.layers["last"], batched.layers["last"], atol=1e-4)
    assert compared >= 6  # draws near a boundary are rare, not an excuse


def test_another_image_gives_other_states(family, generations):
    _, backend = family
    (other,) = backend.sample([make_query(0, images=[make_picture(99)])], N, HEAT, seed=1)
    assert (
        np.abs(other.answer_layers["middle"] - generations[0].answer_layers["middle"]).max() > 1e-3
    )


def test_the_repeated_cache_agrees_and_says_so(family, generations):
    name, _ = family
    model, processor = tiny.build(name)
    slow = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=5, path="repeated_cache"))
    found = list(slow.sample([make_query(i) for i in range(8)], N, HEAT, seed=1))
    assert {g.path for g in found} == {"repeated_cache"}
    for one, two in zip(generations, found, strict=True):
        if one.n_near_boundary == two.n_near_boundary == 0:
            assert one.token_ids == two.token_ids
            np.testing.assert_allclose(one.layers["last"], two.layers["last"], atol=1e-4)
