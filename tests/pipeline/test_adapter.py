"""Stages adapter and train: statistics by query, and who may share an adapter."""

import numpy as np
import pytest

from fusevlm.config import change_config, make_config
from fusevlm.errors import InputError
from fusevlm.pipeline import adapter
from fusevlm.pipeline.adapter import read_statistics
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.train import share_adapters
from fusevlm.store import runs
from fusevlm.store.generations import EMBEDDINGS
from fusevlm.store.parts import Parts
from fusevlm.store.runs import Manifest


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
    return Work(tmp_path, make_config({}, "test"), lambda done, total: None)


def test_every_embedded_query_has_its_own_statistics(work):
    assert adapter.make(work) == {"queries": 2}
    runs.write_manifest(work.run, Manifest("adapter", {}, {}, {}, complete=True))
    assert read_statistics(work.run) == {
        "test/0": {"s": 0.0, "s_text": 0.0},
        "calibration/2": {"s": 2.0, "s_text": -2.0},
    }


def test_a_statistic_the_adapter_does_not_give_is_named(work):
    other = make_config({"adapter": {"statistic": "s_image"}}, "test")
    with pytest.raises(InputError, match=r"adapter\.statistic is 's_image'; it gives s, s_text"):
        adapter.make(Work(work.run, other, work.progress))


def test_places_share_an_adapter_that_would_be_the_same(tmp_path):
    """Equal towers, pairs and options: trained once. Any of them otherwise: trained again."""
    files = {"source": "files", "calibration": "c.csv", "test": "t.csv", "train": ["pairs.csv"]}
    base = make_config({"data": files, "adapter": {"source": "train"}}, "test")
    places = {
        "base": base,
        "same": change_config(base, ["sample.n=3"]),
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
