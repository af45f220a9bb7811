"""The sampling loop beyond what every family is checked for: what ends, what is noted of a draw."""

import numpy as np
import pytest
import torch
from tests.models.conftest import make_query

from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.temperatures import stratified
from fusevlm.testing import tiny
from fusevlm.testing.oracle import teacher_forced

N = 5
HEAT = stratified(N)


def test_warped_log_probabilities_are_at_each_samples_own_temperature(llava):
    (found,) = llava.sample([make_query(1)], N, HEAT, seed=2)
    assert len(set(found.temperatures)) > 1
    for tokens, warped, heat in zip(
        found.token_ids, found.warped_logprobs, found.temperatures, strict=True
    ):
        logits, _ = teacher_forced(llava, make_query(1), tokens)
        log_p = (logits.double() / heat).log_softmax(dim=-1)
        steps = [*tokens, llava.tokenizer.eos_token_id][: len(warped)]
        expected = [float(log_p[t, token]) for t, token in enumerate(steps)]
        np.testing.assert_allclose(warped, expected, atol=1e-3)


@pytest.mark.parametrize("where", ["generation_config", "text_config"])
def test_any_of_several_tokens_ends_an_answer(where):
    """A second EOS token, as chat models have: every answer ends before it, as before the first."""
    model, processor = tiny.build("llava")
    plain = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=4))
    asked = [make_query(i) for i in range(3)]
    free = list(plain.sample(asked, N, HEAT, seed=0))
    end = free[0].answer_token_ids[-1]
    held = model.generation_config if where == "generation_config" else model.config.text_config
    held.eos_token_id = [processor.tokenizer.eos_token_id, end]
    backend = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=4))
    ended = 0
    for before, after in zip(free, backend.sample(asked, N, HEAT, seed=0), strict=True):
        for k, tokens in enumerate(before.token_ids):
            cut = tokens.index(end) if end in tokens else len(tokens)
            assert after.token_ids[k] == tokens[:cut]
            if end in tokens:
                ended += 1
                assert not after.truncated[k]
                np.testing.assert_allclose(  # its own log-probability is there
                    after.samples.token_logprobs[k],
                    before.samples.token_logprobs[k][: cut + 1],
                    atol=1e-5,
                )
    assert 0 < ended < 3 * N


def test_greedy_ties_are_counted_as_near_a_boundary():
    """All words equally likely: every step of the judged answer is a tie; a draw seldom is near."""
    model, processor = tiny.build("llava")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias[processor.tokenizer.eos_token_id] = -1e4
    backend = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=4))
    (found,) = backend.sample([make_query(0)], N, HEAT, seed=0)
    assert found.n_near_boundary == len(found.samples.answer_logprobs) == 4
