"""Hidden states stay in the precision they were stored in; what is computed from them does not."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fusevlm import Fuse, simulate
from fusevlm.errors import InputError
from fusevlm.scores import compute_scores
from fusevlm.store.generations import KIND, read_generations, write_generations
from fusevlm.store.parts import Parts
from fusevlm.types import Generation, Queries, Samples


@pytest.fixture(scope="module")
def world():
    return simulate.queries(60, n_samples=6, d=12, seed=5)


def in_precision(samples, dtype, then):
    """Each query's states rounded to ``dtype``, then kept as ``then``."""
    return [replace(one, embeddings=one.embeddings.astype(dtype).astype(then)) for one in samples]


@pytest.mark.parametrize("stored", [np.float16, np.float32])
@pytest.mark.parametrize("preset", ["practical", "paper"])
def test_the_scores_are_those_of_the_same_values_in_float64(world, stored, preset):
    kept = in_precision(world.samples, stored, stored)
    wide = in_precision(world.samples, stored, np.float64)
    assert {one.embeddings.dtype for one in kept} == {np.dtype(stored)}
    found = []
    for samples in (kept, wide):
        fuse = Fuse(preset).fit(samples, world.wrong, s=world.s)
        found.append(fuse.score(samples, s=world.s).u)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("stored", [np.float16, np.float32])
def test_baselines_of_hidden_states_too(world, stored):
    names = ["umpire", "eigenscore", "eigenscore_last"]
    found = []
    for then in (stored, np.float64):
        samples = in_precision(world.samples, stored, then)
        queries = Queries(
            [str(k) for k in range(len(samples))], samples, world.wrong, fit=range(30),
            states={"middle": [one.embeddings for one in samples]},
        )  # fmt: skip
        columns, absent = compute_scores(queries, names)
        assert not absent
        found.append(columns)
    for name in names:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("half", [False, True])
def test_what_is_stored_is_read_in_its_precision_and_once(tmp_path, half):
    n, d, N = 10, 512, 20
    rng = np.random.default_rng(0)
    made = [
        Generation(
            str(k),
            Samples(["a"] * n, [[-1.0]] * n, answer="a", answer_logprobs=[-1.0]),
            layers={"last": rng.standard_normal((n, d))},
            answer_layers={"last": rng.standard_normal(d)},
        )
        for k in range(N)
    ]
    write_generations(Parts(tmp_path, KIND), 0, made, half=half)
    del made
    list(read_generations(tmp_path, "last"))  # what is imported on the way is not counted
    tracemalloc.start()
    found = list(read_generations(tmp_path, "last"))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    dtype = np.float16 if half else np.float32
    assert {g.samples.embeddings.dtype for g in found} == {np.dtype(dtype)}
    assert all(g.layers["last"] is g.samples.embeddings for g in found)
    states = N * n * d * np.dtype(dtype).itemsize
    assert states <= held < 1.5 * states  # it was 3 (float32) or 5 (float16) times as much


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_undefined_states_are_named_in_any_precision(bad):
    rows = np.ones((2, 3), dtype=np.float16)
    rows[1, 2] = bad
    with pytest.raises(InputError, match=r"embeddings has 1 NaN or infinite .*\(1, 2\)"):
        Samples(["a", "b"], embeddings=rows)
