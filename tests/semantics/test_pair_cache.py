"""Judged pairs on disk: no pair twice, whole after a kill, usable with and without ``with``."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.semantics.judges import Digest

from fusevlm.errors import ArtefactError
from fusevlm.semantics.inference import find_meanings, judge_pairs, nli_similarity
from fusevlm.store.cache import PairCache

ROOT = Path(__file__).resolve().parents[2]


def test_the_cache_needs_no_with(tmp_path):
    """Made but not used, it leaves no file; used, it opens; closed, it opens again."""
    path = tmp_path / "deep" / "pairs.sqlite"
    cache = PairCache(path)
    cache.close()
    assert not path.parent.exists()
    pair = {("a", "b"): np.array([0.25, 0.25, 0.5])}
    assert cache.find("m", pair) == {}
    cache.add("m", pair)
    other = PairCache(path)  # two at once
    np.testing.assert_array_equal(other.find("m", pair)["a", "b"], pair["a", "b"])
    cache.close()
    np.testing.assert_array_equal(cache.find("m", pair)["a", "b"], pair["a", "b"])
    cache.close()
    cache.close()
    other.close()


def test_several_batches_share_one_cache(tmp_path):
    cache = PairCache(tmp_path / "pairs.sqlite")
    judge = Digest()
    for samples in (["red", "blue", "red"], ["blue", "red"], ["red", "blue", "green"]):
        nli_similarity(judge, ["colour"], [samples], cache=cache)
        found = find_meanings(judge, ["colour"], [samples], cache=cache)
        assert found.counts.judged == 0
        alone = find_meanings(Digest(), ["colour"], [samples])
        np.testing.assert_array_equal(found.numbers[0], alone.numbers[0])
    assert len(judge.seen) == len(set(judge.seen)) == 6
    cache.close()


def test_the_cache_is_kept_per_model_and_pair(tmp_path):
    pairs = [("a", "b"), ("b", "a"), ("a b", "c"), ("a", "b c")]
    judge, other = Digest(), Digest()
    other.name = "digest@2"
    with PairCache(tmp_path / "deep" / "pairs.sqlite") as cache:
        expected, new = judge_pairs(judge, pairs, cache)
        assert new == 4
        assert judge_pairs(other, pairs, cache)[1] == 4
    with PairCache(tmp_path / "deep" / "pairs.sqlite") as cache:
        found, new = judge_pairs(judge, [*pairs, ("c", "d")], cache)
    assert new == 1
    for pair in pairs:
        np.testing.assert_array_equal(found[pair], expected[pair])
        np.testing.assert_allclose(found[pair], Digest.one(*pair))


DYING = """
import os
from fusevlm.semantics import inference
from fusevlm.store.cache import PairCache
from tests.semantics.judges import Digest

class Dying(Digest):
    def judge(self, pairs):
        if len(self.calls) == 2:
            os._exit(9)
        return super().judge(pairs)

inference.TRANSACTION = 10
inference.judge_pairs(Dying(), [(f"a{i}", "b") for i in range(35)], PairCache(os.environ["PAIRS"]))
"""


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "pairs.sqlite"
    env = os.environ | {"PAIRS": str(path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    died = subprocess.run([sys.executable, "-c", DYING], env=env, cwd=tmp_path, check=False)
    assert died.returncode == 9
    judge = Digest()
    with PairCache(path) as cache:
        found, new = judge_pairs(judge, [(f"a{i}", "b") for i in range(35)], cache)
    assert new == len(judge.seen) == 15  # two transactions of ten were kept
    assert len(found) == 35
    for pair, p in found.items():
        np.testing.assert_allclose(p, Digest.one(*pair))


def test_a_file_that_is_no_cache_is_refused(tmp_path):
    path = tmp_path / "pairs.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ArtefactError, match="Delete it"), PairCache(path):
        pass
    cache = PairCache(path)
    with pytest.raises(ArtefactError, match="Delete it"):
        cache.find("m", [("a", "b")])
    with pytest.raises(ArtefactError, match="Delete it"):
        cache.add("m", {("a", "b"): np.ones(3) / 3})


def test_a_failed_write_stops_the_run(tmp_path):
    path = tmp_path / "pairs.sqlite"
    with PairCache(path) as cache:
        other = sqlite3.connect(path)
        with other:
            other.execute("DROP TABLE verdicts")
        other.close()
        with pytest.raises(ArtefactError, match="cannot write"):
            cache.add("m", {("a", "b"): np.ones(3) / 3})


def test_a_damaged_row_is_judged_again(tmp_path):
    path, pairs = tmp_path / "pairs.sqlite", [("a", "b"), ("b", "a"), ("c", "d")]
    judge = Digest()
    with PairCache(path) as cache:
        expected, _ = judge_pairs(judge, pairs, cache)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE verdicts SET neutral = 'much' WHERE entailment IN "
                     "(SELECT MAX(entailment) FROM verdicts)")  # fmt: skip
        file.execute("UPDATE verdicts SET contradiction = contradiction + 1e-9 WHERE entailment IN "
                     "(SELECT MIN(entailment) FROM verdicts)")  # fmt: skip
    file.close()
    with PairCache(path) as cache:
        found, new = judge_pairs(judge, pairs, cache)
        assert new == 2
        assert found.keys() == expected.keys()
        for pair, value in expected.items():
            np.testing.assert_array_equal(found[pair], value)
        assert judge_pairs(judge, pairs, cache)[1] == 0  # put right
