"""Small tables of queries with everything that any score may need."""

from dataclasses import replace

import numpy as np

from fusevlm.types import Queries, Samples, Semantics

WORDS = ["a cat", "dog", "Horse", "two", "-2", "red"]


def table(samples, *, middle=None, semantics=None, **known):
    """Queries named by their number; ``semantics`` by name, one entry per query each."""
    rows = None
    if semantics:
        names, columns = list(semantics), list(semantics.values())
        rows = [
            Semantics(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
        ]
    states = {} if middle is None else {"middle": middle}
    ids = [str(i) for i in range(len(samples))]
    return Queries(ids, samples, semantics=rows, states=states, **known)


def with_answer(similarity, to_answer=None):
    """[n+1, n+1] of similarities [n, n] and of those to the judged answer (default: none)."""
    n = len(similarity)
    between = np.eye(n + 1)
    between[:n, :n] = similarity
    if to_answer is not None:
        between[n, :n] = between[:n, n] = to_answer
    return between


def similarities(group, rng):
    n = len(group)
    W = np.where(group[:, None] == group, 0.95, rng.uniform(0.0, 0.5, (6, 6))[group][:, group])
    W = 0.5 * (W + W.T)
    W[np.arange(n), np.arange(n)] = 1.0
    return W


def run(n_queries=12, n_samples=7, d=10, seed=0):
    """Queries whose samples, tokens and states are all at random; the first half calibrates."""
    rng = np.random.default_rng(seed)
    samples, middle, sample_wrong = [], [], []
    known = {name: [] for name in ("meanings", "between", "rephrasings")}
    for _ in range(n_queries):
        group = rng.choice(6, n_samples, p=rng.dirichlet(np.full(6, 0.5)))
        tokens = [-rng.gamma(1.0, 0.5, rng.integers(1, 5)) for _ in range(n_samples)]
        samples.append(
            Samples(
                [WORDS[g] for g in group],
                tokens,
                rng.standard_normal((n_samples, d)),
                WORDS[group[0]] if rng.uniform() < 0.7 else "none of them",
                -rng.gamma(1.0, 0.5, 3),
            )
        )
        middle.append(5.0 * rng.standard_normal((n_samples, d)))
        known["meanings"].append(group)
        similarity = similarities(group, rng)
        known["between"].append(with_answer(similarity, rng.uniform(size=6)[group]))
        known["rephrasings"].append(rng.uniform(size=5) < 0.6)
        sample_wrong.append(group >= 4)
    known["p_true"] = rng.uniform(size=n_queries)
    wrong = rng.uniform(size=n_queries) < 0.4
    known["complement"] = [None if k % 3 else float(rng.uniform()) for k in range(n_queries)]
    return table(
        samples,
        middle=middle,
        semantics=known,
        fit=np.arange(n_queries // 2),
        wrong=wrong,
        sample_wrong=sample_wrong,
        answer_states={"last": rng.standard_normal((n_queries, d))},
    )


def known(queries, name):
    """One of the fields of ``semantics`` of each query."""
    return [getattr(one, name) for one in queries.semantics]


def with_known(queries, **fields):
    """The same queries with other semantics, one entry per query, or None for all."""
    N = len(queries)
    columns = {k: [None] * N if rows is None else rows for k, rows in fields.items()}
    changed = [
        replace(one, **{name: rows[i] for name, rows in columns.items()})
        for i, one in enumerate(queries.semantics)
    ]
    return replace(queries, semantics=changed)


def with_samples(queries, pick):
    """The same queries with the samples ``pick(i, n)`` of query i, in that order."""
    samples, middle, semantics, sample_wrong = [], [], [], []
    for i, one in enumerate(queries.samples):
        order = np.asarray(pick(i, len(one)))
        samples.append(
            Samples(
                [one.texts[k] for k in order],
                [one.token_logprobs[k] for k in order],
                one.embeddings[order],
                one.answer,
                one.answer_logprobs,
            )
        )
        about, both = queries.semantics[i], np.append(order, len(one))
        between = about.between[np.ix_(both, both)]
        semantics.append(replace(about, meanings=about.meanings[order], between=between))
        middle.append(queries.states["middle"][i][order])
        sample_wrong.append(queries.sample_wrong[i][order])
    return replace(
        queries,
        samples=samples,
        semantics=semantics,
        states={"middle": middle},
        sample_wrong=sample_wrong,
    )
