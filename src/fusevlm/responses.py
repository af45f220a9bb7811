"""What servers and libraries return for one query, as texts and token log-probabilities.

Read by the names that their objects (or JSON) have; none of them is imported. Log-probabilities
are all or nothing: where any sample lacks some, all go, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.errors import InputError

logger = logging.getLogger(__name__)

Found = tuple[list[str], list[Any] | None]  # texts, and log-probabilities of each


def of_openai(response: Any) -> Found:
    """Of one response with n choices, or of a list of responses to one query."""
    several = isinstance(response, Sequence) and not isinstance(response, str | bytes)
    choices: list[Any] = []
    for one in response if several else [response]:
        choices += _listed(one, "choices", "an OpenAI response")
    if not choices:
        raise InputError("the OpenAI response has no choices; expected one per sample.")
    texts = [_said(choice) for choice in choices]
    return texts, _whole([_openai_logprobs(choice) for choice in choices], "Ask for logprobs=True.")


def of_vllm(output: Any) -> Found:
    """Of one RequestOutput."""
    if isinstance(output, Sequence):
        raise InputError(
            "expected one RequestOutput; llm.generate gives a list, one per prompt: "
            "[Samples.from_vllm(output) for output in outputs]."
        )
    completions = _listed(output, "outputs", "a RequestOutput of vLLM")
    texts = [str(_needed(one, "text", "an output of vLLM")) for one in completions]
    rows = [_vllm_logprobs(one) for one in completions]
    return texts, _whole(rows, "Sample with SamplingParams(logprobs=0).")


def of_hf(
    output: Any, tokenizer: Any, prompt_length: int | None, eos: Any, rows: slice = slice(None)
) -> Found:
    """Of some rows of what ``generate`` of transformers returns."""
    if _get(output, "beam_indices") is not None:
        raise InputError(
            "beam search gives no samples: generate with do_sample=True, num_beams=1 and "
            "num_return_sequences=n."
        )
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    sequences = _array(_needed(output, "sequences", "what generate returned (a dictionary)"))
    logits = _get(output, "logits")
    start = _prompt_length(sequences.shape[1], logits, prompt_length)
    said = sequences[rows, start:]
    if not said.size:
        raise InputError("there is no generated token in these rows; expected one row per sample.")
    ends = [_length(row, _ids(inner.eos_token_id if eos is None else eos), inner) for row in said]
    tokens = [row[:end].tolist() for row, end in zip(said, ends, strict=True)]
    texts = [str(inner.decode(row, skip_special_tokens=True)).strip() for row in tokens]
    if logits is None:
        return texts, _whole([None] * len(texts), "Generate with output_logits=True.")
    table = np.column_stack(
        [_log_softmax(_array(step)[rows], said[:, t]) for t, step in enumerate(logits)]
    )
    return texts, [row[:end] for row, end in zip(table, ends, strict=True)]


def _get(thing: Any, name: str) -> Any:
    """An attribute or a key, None if there is neither."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _needed(thing: Any, name: str, what: str) -> Any:
    found = _get(thing, name)
    if found is None:
        raise InputError(f"expected {what} with {name!r}; got a {type(thing).__name__}.")
    return found


def _listed(thing: Any, name: str, what: str) -> list[Any]:
    found = _needed(thing, name, what)
    if not isinstance(found, list | tuple):
        raise InputError(f"expected {what} with a list {name!r}; got a {type(found).__name__}.")
    return list(found)


def _said(choice: Any) -> str:
    """The text of a choice: its content, whole or in parts; a refusal is what was said, too."""
    message = _get(choice, "message")
    if message is None:
        return str(_needed(choice, "text", "a choice with a 'message' or"))
    content = _get(message, "content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(str(_get(part, "text") or "") for part in content)
    return str(content or _get(message, "refusal") or "")


def _openai_logprobs(choice: Any) -> Any:
    found = _get(choice, "logprobs")
    content = _get(found, "content")  # of a chat
    if content is None:
        return _get(found, "token_logprobs")  # of a plain completion
    return [_get(token, "logprob") for token in content] if _is_list(content) else None


def _vllm_logprobs(completion: Any) -> Any:
    steps, tokens = _get(completion, "logprobs"), _get(completion, "token_ids")
    if steps is None or tokens is None or len(steps) != len(tokens):
        return None
    found = [(step or {}).get(token) for step, token in zip(steps, tokens, strict=True)]
    return [getattr(one, "logprob", one) for one in found]


def _whole(rows: Sequence[Any], advice: str) -> list[Any] | None:
    """The rows if every one is known to its last token, else None."""
    known = [_is_list(row) and len(row) > 0 and all(map(_is_number, row)) for row in rows]
    if all(known):
        return list(rows)
    logger.warning(
        "%d of %d samples come without all their log-probabilities: going without any. %s",
        known.count(False),
        len(known),
        advice,
    )
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value))


def _array(tensor: Any) -> Any:
    """A tensor of any library as a numpy array, half precision as single."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).cpu()
    return np.asarray(tensor)


def _prompt_length(total: int, logits: Any, given: int | None) -> int:
    if given is None and logits is None:
        raise InputError(
            "where the answers begin is not known: pass prompt_length=inputs['input_ids'].shape[1] "
            "(0 where the model was given inputs_embeds), or generate with output_logits=True."
        )
    own = total if logits is None else total - len(logits)
    start = own if given is None else int(given)
    if logits is not None and start != own:
        raise InputError(
            f"prompt_length is {start}, but {total} tokens with {len(logits)} steps of logits "
            f"leave {own} for the prompt. Leave prompt_length out."
        )
    return start


def _ids(eos: Any) -> set[int]:
    return set() if eos is None else {int(i) for i in np.atleast_1d(eos)}


def _length(row: Any, eos: set[int], tokenizer: Any) -> int:
    """Tokens of an answer: to its EOS, or without one to where only padding follows."""
    ended = np.flatnonzero(np.isin(row, list(eos)))
    if len(ended):
        return int(ended[0]) + 1
    pad = getattr(tokenizer, "pad_token_id", None)
    kept = np.flatnonzero(row != pad) if pad is not None else np.arange(len(row))
    return int(kept[-1]) + 1 if len(kept) else 1


def _log_softmax(logits: Any, tokens: Any) -> FloatArray:
    """ln softmax of logits [n, V] at one token per row."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(shifted)), tokens]
    return np.asarray(own - np.log(np.exp(shifted).sum(axis=1)))
