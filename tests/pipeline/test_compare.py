"""Two runs compared: differences against plain resampling, and what cannot be compared."""

import shutil

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.pipeline.conftest import renote

from fusevlm.cli import main
from fusevlm.errors import InputError
from fusevlm.pipeline import compare
from fusevlm.pipeline.evaluate import PREDICTIONS, read_predictions
from fusevlm.store.tables import save_parquet


@pytest.fixture
def two(run, tmp_path):
    """A run, and a copy of it whose first third has other labels and scores."""
    folder, _ = run
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    table = read_predictions(other)
    rng = np.random.default_rng(0)
    size = len(table["wrong"])
    table["wrong"] = [bool(w) if k > size // 3 else bool(rng.random() < 0.5)
                      for k, w in enumerate(table["wrong"])]  # fmt: skip
    table["practical.u"] = [u + 0.5 * rng.standard_normal() for u in table["practical.u"]]
    keep = [*range(0, size, 2), 1]  # not all queries, in another order
    save_parquet(other / "evaluate" / PREDICTIONS, {n: [v[k] for k in keep[::-1]]
                                                    for n, v in table.items()})  # fmt: skip
    renote(other, "evaluate")
    return folder, other, keep


def test_the_common_queries_are_compared_in_one_order(two):
    one, other, keep = two
    first, second = compare.read_sides(one, other)
    whole, changed = read_predictions(one), read_predictions(other)
    ids = [i for i in whole["query_id"] if i in set(changed["query_id"])]
    assert len(first.wrong) == len(second.wrong) == len(keep)
    place = {name: k for k, name in enumerate(changed["query_id"])}
    assert second.wrong.tolist() == [changed["wrong"][place[i]] for i in ids]
    assert first.columns["practical.u"].tolist() == [
        whole["practical.u"][whole["query_id"].index(i)] for i in ids
    ]


def test_differences_are_those_of_resampled_units(two):
    one, other, _ = two
    sides = compare.read_sides(one, other)
    counts = compare.resamples(sides[0].units, 0)
    units = np.array(sides[0].units)
    for draw in counts[:20]:
        assert all(len(set(draw[units == unit])) == 1 for unit in set(units.tolist()))
    a, b = (compare.auroc(side, "practical", counts) for side in sides)
    for row in (0, 1, 7):
        rows = np.repeat(np.arange(len(units)), counts[row])
        for side, values in ((sides[0], a), (sides[1], b)):
            u = side.columns["practical.u"][rows]
            assert values[row] == pytest.approx(roc_auc_score(side.wrong[rows], u))
    gap = compare.paired(a, b)
    assert gap["difference"] == pytest.approx(b[0] - a[0])
    assert gap["low"] <= gap["difference"] <= gap["high"]
    low, high = np.percentile((b - a)[1:], [2.5, 97.5])
    assert (gap["low"], gap["high"]) == (pytest.approx(low), pytest.approx(high))


def test_the_command_writes_the_page(two, tmp_path, capsys):
    one, other, keep = two
    out = tmp_path / "both.html"
    assert main(["report", str(one), str(other), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"page: {out}\n"
    text = out.read_text()
    assert f"{len(keep)} test queries are in both" in text
    assert 'id="data"' in text


def test_what_cannot_be_compared_is_said(two, tmp_path, capsys):
    one, other, _ = two
    assert main(["report", str(one), str(tmp_path / "none")]) == 1
    assert "no run folder" in capsys.readouterr().err
    assert main(["report", str(one), "--out", "x.html"]) == 1
    assert "--out goes with two runs" in capsys.readouterr().err
    table = read_predictions(other)
    table["query_id"] = [f"else/{i}" for i in table["query_id"]]
    save_parquet(other / "evaluate" / PREDICTIONS, table)
    renote(other, "evaluate")
    with pytest.raises(InputError, match="no test query in common"):
        compare.compare_page(one, other)
