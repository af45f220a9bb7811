"""Pictures nobody should send, in one run among good ones: each is one failed row, and no more."""

import json
import random

import numpy as np
import pytest
from tests.safety.children import run_child
from tests.safety.pictures import hostile, odd

from fusevlm.data.images import load_image
from fusevlm.data.questions import queries
from fusevlm.pipeline.evaluate import read_predictions
from fusevlm.store.generations import read_generations
from fusevlm.store.parts import read_parts

pytestmark = pytest.mark.slow
CONFIG = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"

[sample]
n = 3
batch = 16

[score]
baselines = ["g_nll", "distinct"]

[calibrate]
methods = ["practical", "g_nll"]

[evaluate]
bootstrap = 10

[report]
figures = ["roc"]
pdf = false
"""
GOOD = {"calibration": 24, "test": 16}
MORE_MEMORY = 400  # MB that a run with them may take beyond one without
MORE_FOR_LARGE = 2500  # and one with pictures of 100 million pixels
MOST = 60


def good_rows(home):
    """Rows by split, their pictures written."""
    found = {}
    for split, size in GOOD.items():
        found[split] = []
        for k, query in enumerate(queries(split, limit=size)):
            load_image(query.images[0]).save(home / f"{split}{k}.png")
            found[split].append({"id": f"good{k}", "question": query.question,
                                 "image": f"{split}{k}.png",
                                 "references": list(query.references)})  # fmt: skip
    return found


def run_of(home, name, rows):
    """Both tables written and run; how the command ended, and where."""
    for split, own in rows.items():
        (home / f"{split}.jsonl").write_text("\n".join(map(json.dumps, own)))
    (home / f"{name}.toml").write_text(CONFIG)
    run = home.parent / name
    words = ["run", str(home / f"{name}.toml"), "--run", str(run), "--quiet"]
    return run_child(words, run), run


def mixed(rows, names, seed):
    """The good rows in their order, and among them one for each of the ``names``."""
    rng = random.Random(seed)
    found = {split: list(own) for split, own in rows.items()}
    for k, name in enumerate(names):
        own = found[rng.choice(list(found))]
        row = {"id": f"bad{k}", "question": "what shape is it?", "image": name,
               "references": ["circle"]}  # fmt: skip
        own.insert(rng.randrange(len(own) + 1), row)
    return found


def said(run):
    """What the model said to each query, and its numbers: log-probabilities, states, vectors."""
    words, numbers = {}, {}
    for g in read_generations(run / "sample", "last", layers=["middle"]):
        if g.error is None:
            words[g.query_id] = (g.samples.texts, g.samples.answer, list(map(list, g.token_ids)))
            numbers[g.query_id] = [*g.samples.token_logprobs, *map(np.ravel, g.layers.values())]
    for rows, arrays in read_parts(run / "embed", "fusevlm.embeddings"):
        for k, query_id in enumerate(rows["query_id"]):
            if rows["error"][k] is None:
                numbers[query_id] += [np.ravel(a[k]) for a in arrays.values()]
    return words, {name: np.concatenate(values) for name, values in numbers.items()}


def judged(run):
    """What came of the test queries: the numeric columns, in order."""
    table = read_predictions(run)
    return {n: np.array(v, dtype=float) for n, v in table.items() if isinstance(v[0], float | bool)}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """(folder of good pictures, their rows, a run of them alone)."""
    home = tmp_path_factory.mktemp("pictures") / "home"
    home.mkdir()
    rows = good_rows(home)
    ended, run = run_of(home, "without", rows)
    assert ended.code == 0, ended.said
    return home, rows, run, ended.peak


def test_hostile_pictures_are_failed_rows(without, tally, capsys):
    home, rows, alone, peak = without
    names = hostile(home, home.parent / "outside.png")
    assert len(names) >= MOST
    ended, run = run_of(home, "with", mixed(rows, names, seed=1))
    assert ended.code == 3, ended.said
    errors = {g.query_id.partition("/")[2]: g.error for g in read_generations(run / "sample")}
    failed = {i: why for i, why in errors.items() if why is not None}
    assert sorted(failed) == sorted(f"bad{k}" for k in range(len(names)))
    told = [(names[int(i[3:])], failed[i]) for i in sorted(failed, key=lambda i: int(i[3:]))]
    assert all(len(why) > 15 and "Traceback" not in why for _, why in told)
    (now, numbers), (before, known) = said(run), said(alone)
    assert now == before
    # they are batched with others now, which may round otherwise
    gap = max(float(np.abs(numbers[i] - known[i]).max()) for i in now)
    assert gap < 1e-4
    found, expected = judged(run), judged(alone)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4, err_msg=name)
    assert ended.peak - peak < MORE_MEMORY
    print(*(f"{name[:24]!r:28} {why[:110]}" for name, why in told), sep="\n")
    tally(f"{len(names)} hostile pictures in one run: {len(failed)} failed rows, 0 of {len(now)} "
          f"others differ (by {gap:.0e} at most), {ended.peak - peak:+.0f} MB")  # fmt: skip


def test_odd_pictures_are_read(without, tally):
    home, rows, _, peak = without
    names = odd(home)
    ended, run = run_of(home, "odd", mixed(rows, names, seed=2))
    assert ended.code == 0, ended.said
    assert {g.error for g in read_generations(run / "sample")} == {None}
    assert ended.peak - peak < MORE_FOR_LARGE
    tally(f"{len(names)} odd pictures that are fine: 0 failed rows, {ended.peak - peak:+.0f} MB")
