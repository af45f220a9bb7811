"""A judge of pairs without a model."""

import hashlib

import numpy as np


class Digest:
    """Probabilities drawn from a digest of the pair; remembers every call."""

    name = "digest@1"

    def __init__(self):
        self.calls = []

    def judge(self, pairs):
        self.calls.append(list(pairs))
        return np.array([self.one(*pair) for pair in pairs]).reshape(-1, 3)

    @staticmethod
    def one(premise, hypothesis):
        seed = hashlib.sha256(f"{premise}|{hypothesis}".encode()).digest()[:4]
        return np.random.default_rng(int.from_bytes(seed, "big")).dirichlet([0.3, 0.5, 1.0])

    @property
    def seen(self):
        return [pair for call in self.calls for pair in call]
