"""Which methods and queries the figures of a run are of."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

from fusevlm.config import make_config
from fusevlm.errors import InputError
from fusevlm.pipeline.evaluate import read_predictions, read_results
from fusevlm.pipeline.report import _likely, check_report, drawn, of_choice, read_shown
from fusevlm.pipeline.run import run_stages
from fusevlm.pipeline.validate import validate
from fusevlm.store.generations import read_generations


def results(absent=None, **aurocs):
    figures = {name: {"auroc": None if v is None else {"estimate": v}} for name, v in
               aurocs.items()}  # fmt: skip
    return {"slices": [{"methods": figures}], "absent": absent or {}}


MANY = {name: 0.5 + 0.01 * k for k, name in enumerate(
    ("ntl", "g_nll", "umpire", "eigenscore", "ln_entropy", "distinct", "clm_max", "clm_sum",
     "clm_geo"))}  # fmt: skip


def test_the_method_of_choice():
    found = results(**MANY, practical=0.6, paper=0.7, absent={"p_true": "not asked"})
    assert of_choice("", found) == "practical"  # the first form of FUSE
    assert of_choice("", results(ntl=0.5, g_nll=0.6)) == "ntl"
    assert of_choice("umpire", found) == "umpire"
    with pytest.raises(InputError, match=r"report\.method is 'p_true', which is absent: not asked"):
        of_choice("p_true", found)
    with pytest.raises(InputError, match="Did you mean 'umpire'"):
        of_choice("umpir", found)


def test_what_is_drawn_beside_it():
    found = results(**MANY, paper=0.2, practical=0.6, absent={"p_true": "not asked"})
    names, left_out = drawn("practical", (), found)
    # FUSE, then G-NLL, then the largest AUROCs
    assert names == ["practical", "paper", "g_nll", "clm_geo", "clm_sum", "clm_max", "distinct",
                     "ln_entropy"]  # fmt: skip
    assert left_out == {}
    assert drawn("clm_sum", (), found)[0][:3] == ["clm_sum", "practical", "paper"]
    names, left_out = drawn("practical", ("ntl", "p_true", "practical"), found)
    assert (names, left_out) == (["practical", "ntl"], {"p_true": "not asked"})
    with pytest.raises(InputError, match=r"report\.beside: .*Did you mean 'umpire'"):
        drawn("practical", ("umpir",), found)
    undefined = results(practical=None, ntl=None, g_nll=None)
    assert drawn("ntl", (), undefined)[0] == ["ntl", "practical", "g_nll"]


def test_what_is_not_compared_is_refused_before_anything_runs(tmp_path):
    tree = {"calibrate": {"methods": ["practical", "g_nll"]}}
    check_report(make_config({**tree, "report": {"method": "g_nll"}}, "test"))
    bad = make_config({**tree, "report": {"method": "practicl", "beside": ["gnll"]}}, "test")
    with pytest.raises(InputError, match=r"report\.method: .*'practicl'.*Did you mean 'practical'"):
        check_report(bad)
    other = make_config({**tree, "report": {"figures": ["rok"]}}, "test")
    with pytest.raises(InputError, match=r"report\.figures: 'rok' is not.* Did you mean 'roc'"):
        check_report(other)
    assert any("report.method" in problem for problem in validate(bad, tmp_path).problems)


def test_ntl_is_that_of_the_stored_tokens(finished):
    root, *_ = finished
    ids = read_predictions(root)["query_id"]
    found = dict(zip(ids, _likely(read_shown(root, ids)), strict=True))
    for generation in read_generations(root / "sample"):
        if generation.query_id in found:
            tokens = [math.exp(x) for row in generation.samples.token_logprobs for x in row]
            assert found[generation.query_id] == pytest.approx(sum(tokens) / len(tokens))


@pytest.mark.parametrize("method", ["g_nll", "prior-only"])
def test_examples_of_another_method_are_its_own(run, method, monkeypatch):
    """Numbers and groups of the examples, and the page's data, against the stored predictions."""
    from fusevlm.pipeline import report as stage

    folder, config = run
    drawn_groups = {}
    draw = stage.draw_examples

    def kept(groups, title):
        drawn_groups.update(groups)
        return draw(groups, title)

    monkeypatch.setattr(stage, "draw_examples", kept)
    report = dataclasses.replace(config.report, method=method, examples=4, figures=("qualitative",))
    run_stages(folder, dataclasses.replace(config, report=report), redo="report")
    page = (folder / "report" / "index.html").read_text()
    table = read_predictions(folder)
    u, wrong = np.array(table[f"{method}.u"]), np.array(table["wrong"])
    order = np.argsort(u, kind="stable")
    half = len(u) // 2
    first = {
        "confident and right": next(i for i in order[:half] if not wrong[i]),
        "unsure and wrong": next(i for i in order[half:][::-1] if wrong[i]),
        "confident and wrong": next(i for i in order[:half] if wrong[i]),
        "unsure and right": next(i for i in order[half:][::-1] if not wrong[i]),
    }
    m0 = table.get(f"{method}.m0")
    for group, row in first.items():
        (example,) = drawn_groups[group]
        assert (example.u, example.rank) == (u[row], int(np.flatnonzero(order == row)[0]) + 1)
        assert example.p_wrong == table[f"{method}.p_wrong"][row]
        assert example.m0 == (None if m0 is None else m0[row])
        answered = table[f"{method}.answered_guaranteed"][row]
        assert example.decision == ("answer" if answered else "abstain")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert data["method"] == method
    assert data["compared"][method]["u"] == table[f"{method}.u"]
    assert (data["own"] is None) == (m0 is None)
    assert read_results(folder)["slices"][0]["methods"].keys() >= {method}
