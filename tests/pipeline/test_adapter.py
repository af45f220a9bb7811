"""Stages adapter and train: statistics by query, and who may share an adapter."""

from dataclasses import replace

import numpy as np
import pytest
from tests.pipeline.conftest import renote

from fusevlm.config import change_config, make_config
from fusevlm.errors import InputError
from fusevlm.maths.gaussians import fit_gaussian, mahalanobis
from fusevlm.pipeline import adapter
from fusevlm.pipeline.adapter import read_statistics
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.train import share_adapters
from fusevlm.priors.activations import fit_laplace, log_variance
from fusevlm.store import runs
from fusevlm.store.generations import EMBEDDINGS
from fusevlm.store.parts import Parts
from fusevlm.store.runs import Manifest
from fusevlm.types import Query


class Firsts:
    """A prior whose statistics are the first entries of the two vectors."""

    def statistics(self, image, text):
        return {"s": image[:, 0], "s_text": text[:, 0]}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Embeddings of three queries, one of which failed; the first entry is the query's number."""
    vectors = np.outer(np.arange(3.0), np.ones(4)).astype(np.float32)
    rows = {"query_id": ["test/0", "test/1", "calibration/2"], "error": [None, "torn", None]}
    Parts(tmp_path / "embed", EMBEDDINGS).write(0, rows, {"image": vectors, "text": -vectors}, {})
    runs.write_manifest(tmp_path, Manifest("embed", {}, {}, {}, complete=True))
    monkeypatch.setattr(adapter, "load_adapter", lambda run, config: Firsts())
    few = make_config({"adapter": {"statistics": ["s_text"]}}, "test")
    return Work(tmp_path, few, lambda *_: None)


def test_every_embedded_query_has_its_own_statistics(work):
    assert adapter.make(work) == {"queries": 2}
    runs.write_manifest(work.run, Manifest("adapter", {}, {}, {}, complete=True))
    assert read_statistics(work.run) == {
        "test/0": {"s": 0.0, "s_text": 0.0},
        "calibration/2": {"s": 2.0, "s_text": -2.0},
    }


def test_a_statistic_the_adapter_does_not_give_is_named(work):
    for key, value in (("statistic", "s_image"), ("statistics", ["s_text", "s_image"])):
        other = make_config({"adapter": {"statistics": ["s_text"], key: value}}, "test")
        with pytest.raises(InputError, match=rf"{key} names 's_image'; there are s, s_text"):
            adapter.make(Work(work.run, other, work.progress))


def test_activations_are_measured_against_the_calibration_queries(tmp_path, monkeypatch):
    """Test queries against all of them, each of them against those of other units."""
    rng = np.random.default_rng(0)
    image, text = rng.standard_normal((20, 4)), rng.standard_normal((20, 3))
    splits = ["calibration"] * 12 + ["test"] * 8
    ids = [f"{split}/{k}" for k, split in enumerate(splits)]
    units = [str(k // 3) for k in range(20)]
    asked = [
        Query(i, "?", metadata={"split": split, "unit": unit})
        for i, split, unit in zip(ids, splits, units, strict=True)
    ]
    errors = [None] * 20
    errors[4] = "torn"
    arrays = {"image": image, "text": text, "image_pre": 5 + image, "text_pre": 5 + text}
    Parts(tmp_path / "embed", EMBEDDINGS).write(0, {"query_id": ids, "error": errors}, arrays, {})
    runs.write_manifest(tmp_path, Manifest("embed", {}, {}, {}, complete=True))
    monkeypatch.setattr(adapter, "load_adapter", lambda run, config: Firsts())
    monkeypatch.setattr(adapter, "read_asked", lambda run: asked)
    tree = {"statistic": "laplace_text", "statistics": ["mahalanobis_image", "s_text"]}
    config = make_config({"adapter": tree}, "test")
    adapter.make(Work(tmp_path, config, lambda *_: None))
    runs.write_manifest(tmp_path, Manifest("adapter", {}, {}, {}, complete=True))
    renote(tmp_path, "adapter")
    found = read_statistics(tmp_path)
    assert set(found) == set(ids) - {ids[4]}
    names = {"mahalanobis_image": ("image", fit_gaussian, mahalanobis),
             "laplace_text": ("text", fit_laplace, log_variance)}  # fmt: skip
    for k, query_id in enumerate(ids):
        if k == 4:
            continue
        other = [j for j in range(12) if j != 4 and (k >= 12 or units[j] != units[k])]
        for name, (kind, fit, apply) in names.items():
            rows = arrays[f"{kind}_pre"]
            expected = apply(rows[[k]], fit(rows[other]))[0]
            assert found[query_id][name] == pytest.approx(expected, rel=1e-9)
    new = adapter.load_references(tmp_path, config).statistics(5 + image, 5 + text)
    assert new["laplace_text"][15] == found[ids[15]]["laplace_text"]
    assert adapter.load_references(tmp_path, make_config({}, "test")) is None
    monkeypatch.setattr(adapter, "read_asked", lambda run: [
        replace(q, metadata={**q.metadata, "split": "test"}) for q in asked])  # fmt: skip
    with pytest.raises(InputError, match="measured against calibration queries"):
        adapter.make(Work(tmp_path, config, lambda *_: None))


def test_statistics_are_known_and_have_what_they_need():
    with pytest.raises(InputError, match="Did you mean 'laplace_text'"):
        make_config({"adapter": {"statistics": ["laplace_txt"]}}, "test")
    with pytest.raises(InputError, match="'s' is not known"):
        make_config({"adapter": {"statistics": ["s"]}}, "test")
    tree = {"embed": {"activations": False}, "adapter": {"statistic": "laplace_text"}}
    with pytest.raises(InputError, match="'laplace_text' is of the towers' activations"):
        make_config(tree, "test")


def test_places_share_an_adapter_that_would_be_the_same(tmp_path):
    """Equal towers, pairs and options: trained once. Any of them otherwise: trained again."""
    files = {"source": "files", "calibration": "c.csv", "test": "t.csv", "train": ["pairs.csv"]}
    base = make_config({"data": files, "adapter": {"source": "train"}}, "test")
    places = {
        "base": base,
        "same": change_config(base, ["sample.n=3", "embed.activations=false"]),
        "options": change_config(base, ["adapter.steps=7"]),
        "pairs": change_config(base, ["data.n_train=9"]),
        "towers": change_config(base, ["embed.towers=others"]),
        "loaded": make_config({"adapter": {"source": "somewhere"}}, "test"),
    }
    made = []
    found = share_adapters(places, tmp_path, lambda folder, config: made.append((folder, config)))
    sources = {name: config.adapter.source for name, config in found.items()}
    assert sources["same"] == sources["base"]
    assert len(set(sources.values())) == 5
    assert sources["loaded"] == "somewhere"
    assert [config for _, config in made] == [
        places[name] for name in ("base", "options", "pairs", "towers")
    ]
    for folder, config in made:
        name = next(name for name, own in places.items() if own is config)
        assert sources[name].startswith(str(folder.resolve()))
