"""Samples from what OpenAI-compatible servers, vLLM and transformers return."""

import json
import logging
from types import SimpleNamespace as Thing

import numpy as np
import pytest
import torch
import transformers

from fusevlm import Samples
from fusevlm.errors import InputError
from fusevlm.testing import tiny

CHAT = json.loads("""{"id": "c", "object": "chat.completion", "choices": [
  {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Two."},
   "logprobs": {"content": [{"token": "Two", "logprob": -0.25, "bytes": [84], "top_logprobs": []},
                            {"token": ".", "logprob": -0.5, "bytes": [46], "top_logprobs": []}]}},
  {"index": 1, "finish_reason": "stop", "message": {"role": "assistant", "content": "three"},
   "logprobs": {"content": [{"token": "three", "logprob": -1.5}]}}]}""")


def as_objects(value):
    """JSON as the official client gives it: attributes, and lists of such."""
    if isinstance(value, dict):
        return Thing(**{k: as_objects(v) for k, v in value.items()})
    return [as_objects(v) for v in value] if isinstance(value, list) else value


def choice(content, logprobs=None, **more):
    return {"message": {"content": content, **more}, "logprobs": logprobs}


@pytest.mark.parametrize("form", [lambda x: x, as_objects])
def test_a_chat_completion(form):
    one = Samples.from_openai(form(CHAT))
    assert one.texts == ("Two.", "three")
    assert [row.tolist() for row in one.token_logprobs] == [[-0.25, -0.5], [-1.5]]
    assert (one.answer, one.answer_is_sample) == ("Two.", True)
    judged = Samples.from_openai(form(CHAT), answer="2", answer_logprobs=[-0.1])
    assert (judged.answer, judged.answer_is_sample) == ("2", False)


def test_several_responses_to_one_query_are_its_samples():
    one = Samples.from_openai([CHAT, as_objects(CHAT)])
    assert one.texts == ("Two.", "three") * 2
    assert len(one.token_logprobs) == 4


def test_a_plain_completion():
    found = {"choices": [{"text": " two", "logprobs": {"token_logprobs": [-0.5, -0.25]}}]}
    one = Samples.from_openai(found)
    assert one.texts == (" two",)
    assert one.token_logprobs[0].tolist() == [-0.5, -0.25]


def test_a_refusal_is_what_was_said_and_parts_are_joined(caplog):
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "cat"}]
    found = {"choices": [choice(None, refusal="I cannot."), choice(parts), choice(None)]}
    assert Samples.from_openai(found).texts == ("I cannot.", "a cat", "")
    assert "3 of 3 samples come without all" in caplog.text


@pytest.mark.parametrize(
    "half",
    [None, {"content": None}, {"content": []}, {"content": [{"logprob": None}]}, {},
     {"content": [{"logprob": float("-inf")}]}, {"content": [{"token": "x"}]},
     {"content": [{"logprob": "-0.5"}]}],
)  # fmt: skip
def test_half_given_log_probabilities_are_none_and_said(half, caplog):
    whole = {"content": [{"logprob": -0.5}]}
    with caplog.at_level(logging.WARNING):
        one = Samples.from_openai({"choices": [choice("a", whole), choice("b", half)]})
    assert (one.token_logprobs, one.answer, one.answer_is_sample) == (None, None, False)
    (told,) = caplog.messages
    assert told.startswith("1 of 2 samples come without all their log-probabilities")
    assert "logprobs=True" in told


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"choices": []}, "no choices"),
        ({"error": {"message": "rate limit"}}, "'choices'; got a dict"),
        ("not parsed", "got a str"),
        ({"choices": [{}]}, "'text'"),
    ],
)
def test_what_is_no_response_is_refused(found, message):
    with pytest.raises(InputError, match=message):
        Samples.from_openai(found)


def vllm(text, tokens, logprobs):
    """A CompletionOutput: at each step the token drawn, and others that were likelier."""
    steps = [{t: Thing(logprob=p, rank=2), 99: Thing(logprob=-0.01, rank=1)}
             for t, p in zip(tokens, logprobs, strict=True)]  # fmt: skip
    return Thing(text=text, token_ids=tuple(tokens), logprobs=steps)


def test_a_request_output_of_vllm(caplog):
    output = Thing(outputs=[vllm("two", [5, 2], [-0.5, -0.1]), vllm("", [2], [-3.0])])
    one = Samples.from_vllm(output)
    assert one.texts == ("two", "")
    assert [row.tolist() for row in one.token_logprobs] == [[-0.5, -0.1], [-3.0]]
    assert not caplog.messages
    for broken in (None, [], [{99: Thing(logprob=-0.5)}, None]):
        output.outputs[0].logprobs = broken
        assert Samples.from_vllm(output).token_logprobs is None
        assert "SamplingParams(logprobs=0)" in caplog.messages[-1]
    with pytest.raises(InputError, match="one per prompt"):
        Samples.from_vllm([output])
    with pytest.raises(InputError, match="'outputs'"):
        Samples.from_vllm(Thing())


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny.text_sizes())).eval()


def generate(model, prompts, n, **options):
    torch.manual_seed(1)
    found = tiny.tokenizer()(prompts, return_tensors="pt", return_token_type_ids=False)
    settings = {"do_sample": True, "temperature": 1.7, "top_k": 20, "max_new_tokens": 12}
    return model.generate(
        **found, num_return_sequences=n, return_dict_in_generate=True, **settings, **options
    )


def test_transformers_log_probabilities_are_those_of_a_teacher_forced_pass(model):
    """Drawn hot and cut, told at temperature 1 and uncut; each row alone, without padding."""
    words = tiny.tokenizer()
    output = generate(model, ["what colour is this", "how many red circle"], 8, output_logits=True)
    start, ended = output.sequences.shape[1] - len(output.logits), 0
    for rows in (slice(0, 8), slice(8, 16)):
        one = Samples.from_hf(output, words, rows=rows)
        assert len(one) == 8
        for text, logprobs, row in zip(
            one.texts, one.token_logprobs, output.sequences[rows].tolist(), strict=True
        ):
            said = row[start:]
            size = said.index(words.eos_token_id) + 1 if words.eos_token_id in said else len(said)
            ended += size < len(said)
            ids = torch.tensor([row[: start + size]])
            with torch.inference_mode():
                logits = model(ids).logits[0, start - 1 : -1].double()
            expected = logits.log_softmax(-1)[range(size), ids[0, start:]]
            np.testing.assert_allclose(logprobs, expected.numpy(), atol=1e-5)
            plain = [words.convert_ids_to_tokens(i) for i in said[:size]]
            assert text == " ".join(w for w in plain if w not in tiny.SPECIAL)
        assert one.answer_is_sample
    assert ended > 0


def test_transformers_without_logits_gives_texts(model, caplog):
    output = generate(model, ["what colour is this"], 4, output_scores=True)
    with pytest.raises(InputError, match="prompt_length="):
        Samples.from_hf(output, tiny.tokenizer())
    one = Samples.from_hf(output, Thing(tokenizer=tiny.tokenizer()), prompt_length=4)
    assert (len(one), one.token_logprobs) == (4, None)
    assert "output_logits=True" in caplog.text
    full = generate(model, ["what colour is this"], 4, output_logits=True)
    assert Samples.from_hf(full, tiny.tokenizer()).texts == one.texts
    with pytest.raises(InputError, match="Leave prompt_length out"):
        Samples.from_hf(full, tiny.tokenizer(), prompt_length=3)
    with pytest.raises(InputError, match="no generated token"):
        Samples.from_hf(full, tiny.tokenizer(), rows=slice(9, 12))


def test_beams_are_no_samples(model):
    ids = torch.tensor([[5, 6]])
    output = model.generate(
        ids, num_beams=2, max_new_tokens=2, return_dict_in_generate=True, output_scores=True
    )
    with pytest.raises(InputError, match="beam search gives no samples"):
        Samples.from_hf(output, tiny.tokenizer())


def test_an_end_that_the_tokenizer_does_not_know():
    """Rows that ended early are padded: padding is no answer, and what ended it may be named."""
    logits = [torch.zeros(2, 8)] * 4
    output = Thing(sequences=torch.tensor([[1, 5, 6, 0, 0], [1, 5, 5, 5, 7]]), logits=logits)
    words = Thing(eos_token_id=2, pad_token_id=0, decode=lambda ids, **_: " ".join(map(str, ids)))
    assert [len(row) for row in Samples.from_hf(output, words).token_logprobs] == [2, 4]
    one = Samples.from_hf(output, words, eos=[5, 2])
    assert one.texts == ("5", "5")
    np.testing.assert_allclose(np.concatenate(one.token_logprobs), -np.log(8.0))
