"""A model of plain numpy that keeps every promise: two words and EOS, from hashes of the input."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.models.protocol import Capabilities, asked
from fusevlm.types import Generation, Samples

WORDS = np.array(["red", "blue", "green", "one", "two", "three"])
LENGTH, EOS = 2, -0.25  # words, and the log-probability of the EOS token


def random(*key):
    """Random numbers that depend on the key alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))


class Toy:
    name = "toy"
    capabilities = Capabilities(logprobs=True, hidden_states=True, images=True, deterministic=True)

    def sample(self, queries, n, temperatures, seed) -> Iterator[Generation]:
        asked(queries, n, temperatures)
        return iter([self.answer(query, temperatures, seed) for query in queries])

    def answer(self, query, temperatures, seed):
        try:
            if not query.question.strip():
                raise InputError("the question is empty.")
            seen = [load_image(image).tobytes() for image in query.images]
        except InputError as error:
            return Generation(query.id, error=str(error))
        prompt = (query.question, *seen)
        rows = [self.row(prompt, t, (seed, query.id, k)) for k, t in enumerate(temperatures)]
        *rows, (tokens, logprobs, state) = [*rows, self.row(prompt, 0.0, ())]
        layers = {"last": np.stack([state for _, _, state in rows])} if rows else {}
        samples = Samples(
            [" ".join(WORDS[t]) for t, _, _ in rows],
            [logprobs for _, logprobs, _ in rows],
            layers.get("last"),
            " ".join(WORDS[tokens]),
            logprobs,
            answer_margins=self.margins(prompt),
        )
        return Generation(
            query.id,
            samples,
            token_ids=[list(t) for t, _, _ in rows],
            warped_logprobs=[list(logprobs) for _, logprobs, _ in rows],
            temperatures=list(temperatures),
            truncated=[False] * len(rows),
            answer_token_ids=list(tokens),
            layers=layers,
            answer_layers={"last": state},
            prompt_layers={"last": random(prompt).standard_normal(5)},
        )

    def margins(self, prompt):
        """Of the best word over the second at each step, and of EOS over all else together."""
        logits = [np.sort(random(prompt, step).standard_normal(6)) for step in range(LENGTH)]
        return [*(row[-1] - row[-2] for row in logits), EOS - np.log1p(-np.exp(EOS))]

    def row(self, prompt, temperature, key):
        """Tokens, log-probabilities at temperature 1 with EOS, and state of one answer."""
        tokens, logprobs = [], []
        for step in range(LENGTH):
            logits = random(prompt, step).standard_normal(len(WORDS))
            noise = random(key, step).gumbel(size=len(WORDS))
            tokens.append(int(np.argmax(logits + temperature * noise)))
            logprobs.append(float(logits[tokens[-1]] - np.logaddexp.reduce(logits)))
        return np.array(tokens), [*logprobs, EOS], random(prompt, tokens).standard_normal(5)


class InRounds(Toy):
    """A Toy that draws in rounds."""

    @contextmanager
    def begin(self, queries, temperatures, seed):
        yield Rounds(self, {query.id: query for query in queries}, temperatures, seed)


class Rounds:
    def __init__(self, model, queries, temperatures, seed):
        self.model, self.queries, self.temperatures, self.seed = model, queries, temperatures, seed

    def draw(self, ids, n):
        return self.model.sample(
            [self.queries[i] for i in ids], n, self.temperatures[:n], self.seed
        )


def changed(**fields):
    """A Toy whose generations have fields made by functions of the generation."""

    class Changed(Toy):
        def answer(self, query, temperatures, seed):
            g = super().answer(query, temperatures, seed)
            return g if g.samples is None else replace(g, **{k: f(g) for k, f in fields.items()})

    return Changed()
