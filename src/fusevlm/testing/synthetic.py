"""A model of plain numpy with a known truth, as fast as random numbers: ``synthetic:d=4096``.

For measuring what everything around a model costs. Each question has a right answer
(:func:`truth`) and a difficulty, both from its words; the model errs more often on harder ones, is
less sure of itself there, and its samples' states lie further apart. All it says of a query depends
on the query and the seed alone. Options, after a comma each: ``d`` features of a hidden state (64),
``seconds`` that a query takes (0).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.data.images import load_image
from fusevlm.errors import FuseError, InputError
from fusevlm.models.protocol import Capabilities, Decoding, asked
from fusevlm.types import Generation, Query, Samples

WORDS = ("red", "blue", "green", "one", "two", "three", "left", "right")
NOISE = 1 << 20  # random numbers that all hidden states are made of
END = 0.98  # probability of the token that ends an answer


def truth(question: str) -> str:
    """The right answer to a question."""
    return WORDS[_number("truth", question) % len(WORDS)]


def difficulty(question: str) -> float:
    """From 0 to 1: how hard a question is."""
    return (_number("difficulty", question) % 10_000) / 10_000


def load(source: str, *, decoding: Decoding | None = None) -> Synthetic:
    """The model with the options that ``source`` names."""
    options: dict[str, Any] = {"d": 64, "seconds": 0.0}
    for text in filter(None, source.split(",")):
        name, _, value = text.partition("=")
        checks.known(name, options, "synthetic: the option")
        try:
            options[name] = type(options[name])(value)
        except ValueError as error:
            raise InputError(f"synthetic: {name} is {value!r}; expected a number.") from error
    checks.count(options["d"], "synthetic: d", least=2)
    return Synthetic(options["d"], options["seconds"], decoding or Decoding())


class Synthetic:
    """Answers of one word, with log-probabilities and states."""

    capabilities = Capabilities(logprobs=True, hidden_states=True, images=True, deterministic=True)

    def __init__(self, d: int, seconds: float, decoding: Decoding) -> None:
        self.d, self.seconds, self.decoding = d, seconds, decoding
        self._noise = np.random.default_rng(0).standard_normal(NOISE + d, dtype=np.float32)
        self.name = f"synthetic:d={d}"

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """One Generation per query, in order."""
        heat = asked(queries, n, temperatures)
        return (self._answered(query, heat, seed) for query in queries)

    def _answered(self, query: Query, heat: FloatArray, seed: int) -> Generation:
        if self.seconds:
            time.sleep(self.seconds)
        try:
            if not query.question.strip():
                raise InputError("the question is empty.")
            seen = [load_image(image).tobytes() for image in query.images]
        except FuseError as error:
            return Generation(query.id, error=str(error), passing=error.passing)
        prompt = (query.question, *map(str, query.history), *(_number(one) for one in seen))
        return self._generation(query, prompt, heat, seed)

    def _generation(
        self, query: Query, prompt: tuple[Any, ...], heat: FloatArray, seed: int
    ) -> Generation:
        hard = difficulty(query.question)
        fixed = np.random.default_rng(_number("prompt", *prompt))
        drawn = np.random.default_rng(_number("samples", seed, query.id, *prompt))
        # the likeliest word is the right one, but for hard questions, where it may be any
        logits = fixed.standard_normal(len(WORDS)) * 0.5
        best = WORDS.index(truth(query.question))
        if fixed.random() < 0.7 * hard:
            best = (best + 1 + int(fixed.integers(len(WORDS) - 1))) % len(WORDS)
        logits[best] += 6.0 * (1.0 - hard) + 1.0
        log_p = logits - np.logaddexp.reduce(logits)
        words = [self._word(log_p, float(t), drawn) for t in heat]
        judged = self._word(log_p, self.decoding.answer_temperature, fixed)
        topic, *meanings = self._vectors(1 + len(WORDS), fixed)
        said = topic + np.float32(0.3 + hard) * np.stack(meanings)  # of each word
        states, own = said[words], said[judged]
        names = [str(layer) for layer in self.decoding.layers]
        layers = {name: _turned(states, k) for k, name in enumerate(names)} if words else {}
        order = np.sort(log_p)
        return Generation(
            query.id,
            Samples(
                [WORDS[word] for word in words],
                [_logprobs(log_p, word) for word in words],
                layers.get(names[0]),
                WORDS[judged],
                _logprobs(log_p, judged),
                answer_margins=[max(0.0, float(order[-1] - order[-2])), -np.log1p(-END)],
            ),
            token_ids=[[word] for word in words],
            warped_logprobs=[_logprobs(log_p, word) for word in words],
            temperatures=[float(t) for t in heat],
            truncated=[False] * len(words),
            answer_token_ids=[judged],
            layers=layers,
            answer_layers={name: _turned(own[None], k)[0] for k, name in enumerate(names)},
            prompt_layers={name: _turned(topic[None], k)[0] for k, name in enumerate(names)},
            prompt_tokens=len(query.question.split()),
            path="synthetic",
        )

    def _vectors(self, count: int, rng: np.random.Generator) -> list[Any]:
        """Windows of one long row of random numbers: many numbers for one that is drawn."""
        return [self._noise[start : start + self.d] for start in rng.integers(NOISE, size=count)]

    def _word(self, log_p: FloatArray, temperature: float, rng: np.random.Generator) -> int:
        """A word drawn at a temperature; the likeliest at 0."""
        if temperature == 0.0:
            return int(log_p.argmax())
        return int((log_p / temperature + rng.gumbel(size=len(log_p))).argmax())


def _turned(rows: Any, k: int) -> Any:
    """The states of another layer: the same numbers in another order."""
    return rows if k == 0 else np.ascontiguousarray(np.roll(rows[:, ::-1], k, axis=1))


def _logprobs(log_p: FloatArray, word: int) -> list[float]:
    return [float(min(log_p[word], 0.0)), float(np.log(END))]


def _number(*key: Any) -> int:
    """64 bits that depend on the key alone."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "little")
