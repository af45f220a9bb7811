"""Small runs with everything that any score may need."""

import numpy as np

from fusevlm.scores import Inputs
from fusevlm.types import Samples

WORDS = ["a cat", "dog", "Horse", "two", "-2", "red"]


def similarities(group, rng):
    n = len(group)
    W = np.where(group[:, None] == group, 0.95, rng.uniform(0.0, 0.5, (6, 6))[group][:, group])
    W = 0.5 * (W + W.T)
    W[np.arange(n), np.arange(n)] = 1.0
    return W


def run(n_queries=12, n_samples=7, d=10, seed=0):
    """Queries whose samples, tokens and states are all at random; the first half calibrates."""
    rng = np.random.default_rng(seed)
    parts = {name: [] for name in ("samples", "middle", "clusters", "similarity")}
    parts |= {name: [] for name in ("answer_similarity", "agreement", "sample_wrong")}
    for _ in range(n_queries):
        group = rng.choice(6, n_samples, p=rng.dirichlet(np.full(6, 0.5)))
        tokens = [-rng.gamma(1.0, 0.5, rng.integers(1, 5)) for _ in range(n_samples)]
        parts["samples"].append(
            Samples(
                [WORDS[g] for g in group],
                tokens,
                rng.standard_normal((n_samples, d)),
                WORDS[group[0]] if rng.uniform() < 0.7 else "none of them",
                -rng.gamma(1.0, 0.5, 3),
            )
        )
        parts["middle"].append(5.0 * rng.standard_normal((n_samples, d)))
        parts["clusters"].append(group)
        parts["similarity"].append(similarities(group, rng))
        parts["answer_similarity"].append(rng.uniform(size=6)[group])
        parts["agreement"].append(rng.uniform(size=5) < 0.6)
        parts["sample_wrong"].append(group >= 4)
    return Inputs(
        **parts,
        p_true=rng.uniform(size=n_queries),
        fit=np.arange(n_queries // 2),
        wrong=rng.uniform(size=n_queries) < 0.4,
    )


def with_samples(inputs, pick):
    """The same run with the samples ``pick(i, n)`` of query i, in that order."""
    parts = {name: [] for name in ("samples", "middle", "clusters", "similarity")}
    parts |= {name: [] for name in ("answer_similarity", "sample_wrong")}
    for i, one in enumerate(inputs.samples):
        order = np.asarray(pick(i, len(one)))
        parts["samples"].append(
            Samples(
                [one.texts[k] for k in order],
                [one.token_logprobs[k] for k in order],
                one.embeddings[order],
                one.answer,
                one.answer_logprobs,
            )
        )
        parts["similarity"].append(inputs.similarity[i][np.ix_(order, order)])
        for name in ("middle", "clusters", "answer_similarity", "sample_wrong"):
            parts[name].append(getattr(inputs, name)[i][order])
    return Inputs(
        **parts,
        agreement=inputs.agreement,
        p_true=inputs.p_true,
        fit=inputs.fit,
        wrong=inputs.wrong,
    )
