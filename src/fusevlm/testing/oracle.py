"""One plain forward pass over prompt and answer: the truth for Hugging Face models (needs torch).

It has no cache, no batch, no shared prefix and no sampling loop, so it shares no error with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from fusevlm.checks import FloatArray
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.layers import layer_index
from fusevlm.types import Generation, Query


def teacher_forced(
    model: HuggingFace, query: Query, tokens: Sequence[int]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits [T+1, V] and hidden states [T+1, d] per layer, from the last prompt token on."""
    inputs = model.prepare(query)
    length = inputs["input_ids"].shape[1]
    tail = torch.tensor([list(tokens)], dtype=torch.long, device=inputs["input_ids"].device)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], tail], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    # what marks the answer's tokens: PaliGemma's 1 is the causal suffix
    for key, mark in (("mm_token_type_ids", 0), ("token_type_ids", 1)):
        if key in inputs:
            inputs[key] = torch.nn.functional.pad(inputs[key], (0, len(tokens)), value=mark)
    with torch.inference_mode():
        out = model.model(**inputs, output_hidden_states=True, use_cache=False)
    return out.logits[0, length - 1 :], [h[0, length - 1 :] for h in out.hidden_states]


def compare(
    model: HuggingFace, query: Query, found: Generation
) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """What was recorded against what the forward pass says: (what, found, expected)."""
    if found.samples is None or found.samples.token_logprobs is None:
        return
    rows = zip(found.token_ids, found.samples.token_logprobs, strict=True)
    for k, (tokens, logprobs) in enumerate(rows):
        logits, hidden = teacher_forced(model, query, tokens)
        expected = _log_probabilities(model, logits, tokens, logprobs)
        yield f"the log-probabilities of sample {k}", np.asarray(logprobs), expected
        yield from _states(
            model, hidden, {name: rows[k] for name, rows in found.layers.items()}, f"sample {k}"
        )
    tokens, logprobs = found.answer_token_ids, found.samples.answer_logprobs
    logits, hidden = teacher_forced(model, query, tokens)
    expected = _log_probabilities(model, logits, tokens, logprobs)
    yield "the log-probabilities of the answer", np.asarray(logprobs), expected
    yield from _states(model, hidden, found.answer_layers, "the answer")
    if found.samples.answer_margins is not None:
        yield "the margins of the answer", found.samples.answer_margins, _gaps(logits, logprobs)
    first = [states[:1] for states in hidden]
    yield from _states(model, first, found.prompt_layers, "the prompt")


def _log_probabilities(
    model: HuggingFace, logits: torch.Tensor, tokens: Sequence[int], recorded: FloatArray
) -> FloatArray:
    """Of the tokens and, where it was recorded, of the EOS token that is nearest to the record."""
    log_p = logits.double().log_softmax(dim=-1)
    steps = [float(log_p[t, token]) for t, token in enumerate(tokens)]
    ends = [float(log_p[len(tokens), token]) for token in model.eos]
    steps.append(min(ends, key=lambda end: abs(end - float(recorded[-1]))))
    return np.array(steps[: len(recorded)])


def _gaps(logits: torch.Tensor, recorded: FloatArray) -> FloatArray:
    """log p(best) − log p(second best) of each step that was recorded."""
    ordered = np.sort(logits.double().log_softmax(dim=-1).cpu().numpy(), axis=1)
    gaps: FloatArray = ordered[: len(recorded), -1] - ordered[: len(recorded), -2]
    return gaps


def _states(
    model: HuggingFace, hidden: list[torch.Tensor], layers: Mapping[str, FloatArray], whose: str
) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    for name, state in layers.items():
        number = name if name in ("last", "middle") else int(name)
        expected = hidden[layer_index(number, len(hidden) - 1)][-1].float().cpu().numpy()
        yield f"the state of layer {name} of {whose}", np.asarray(state), expected
