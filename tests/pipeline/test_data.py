"""Stage data: what is stored is what was drawn or read."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tests.data import official

from fusevlm.config import change_config, demo_config, make_config
from fusevlm.data.questions import queries
from fusevlm.errors import InputError
from fusevlm.pipeline.data import inputs, load_splits, read_asked
from fusevlm.pipeline.run import run_stages
from fusevlm.settings import DataConfig


def test_generated_pictures_are_kept_without_loss(tmp_path):
    config = change_config(demo_config(), ["data.n_calibration=3", "data.n_test=4"])
    run_stages(tmp_path, config, only="data")
    drawn = [*queries("calibration", limit=3), *queries("test", limit=4)]
    stored = read_asked(tmp_path)
    splits = ["calibration"] * 3 + ["test"] * 4
    for split, a, b in zip(splits, drawn, stored, strict=True):
        assert b.id == f"{split}/{a.id}"
        assert (b.question, b.references) == (a.question, a.references)
        assert b.metadata == {**a.metadata, "split": split, "unit": a.metadata["image_id"]}
        np.testing.assert_array_equal(np.asarray(Image.open(b.images[0])), np.asarray(a.images[0]))
    assert json.loads((tmp_path / "data" / "stage.json").read_text())["counts"] == {
        "calibration": 3,
        "test": 4,
    }


def test_tables_of_both_splits_may_use_the_same_ids(tmp_path):
    for name in ("calibration", "test"):
        row = {"id": "1", "question": name, "image": "a.png", "references": ["x"], "k": [1, 2]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    files = {k: str(tmp_path / f"{k}.jsonl") for k in ("calibration", "test")}
    config = make_config({"data": {"source": "files", **files}}, "test")
    run_stages(tmp_path / "run", config, only="data")
    one, two = read_asked(tmp_path / "run")
    assert (one.id, two.id) == ("calibration/1", "test/1")
    assert one.images == [tmp_path / "a.png"]
    assert one.metadata == {"k": [1, 2], "split": "calibration", "unit": str(tmp_path / "a.png")}
    assert read_asked(tmp_path / "run", ("test",))[0].id == "test/1"


def test_a_missing_table_is_named(tmp_path):
    files = {"calibration": "none.csv", "test": "none.csv"}
    config = make_config({"data": {"source": "files", **files}}, "test")
    with pytest.raises(InputError, match=r"data\.calibration is none\.csv, which is no file"):
        inputs(config)


def test_official_queries_are_drawn_by_image(tmp_path, monkeypatch):
    """All of an image on one side, the same draw for a seed, another for another."""
    keys = [image * 1000 + k for image in range(40) for k in range(3)]
    folder = tmp_path / "vqa"
    folder.mkdir()
    official.write(
        folder / "v2_OpenEnded_mscoco_val2014_questions.json",
        official.wrapped("questions", [official.question(key) for key in keys]),
    )
    official.write(
        folder / "v2_mscoco_val2014_annotations.json",
        official.wrapped("annotations", [official.annotation(key) for key in keys]),
    )
    for image in range(40):
        official.write_image(tmp_path / "coco" / "val2014", f"COCO_val2014_{image:012d}.jpg")
    data = DataConfig(
        source="vqav2", folder=str(folder), images=str(tmp_path / "coco"), n_calibration=20,
        n_test=50,
    )  # fmt: skip
    drawn = load_splits(data)
    images = {split: {q.metadata["image_id"] for q in found} for split, found in drawn.items()}
    assert len(drawn["calibration"]) == 20
    assert len(drawn["test"]) == 50  # what an image on the border costs is made up for
    assert not images["calibration"] & images["test"]
    again, other = load_splits(data), load_splits(replace(data, seed=1))
    ids = [q.id for q in drawn["calibration"]]
    assert [q.id for q in again["calibration"]] == ids
    assert [q.id for q in other["calibration"]] != ids
    # the 20th query is the second of its image: the third belongs to neither
    whole = load_splits(replace(data, n_test=100))
    assert (len(whole["calibration"]), len(whole["test"])) == (20, 99)
    monkeypatch.setattr("fusevlm.pipeline.data.SPARE", 1)  # drawn again, with more to spare
    again = load_splits(replace(data, n_calibration=19, n_test=50))
    assert (len(again["calibration"]), len(again["test"])) == (19, 50)
    with pytest.raises(InputError, match="has 120 queries"):
        load_splits(replace(data, n_test=500))


@pytest.fixture
def tables(tmp_path):
    """Two tables; the fixture's function writes rows (question, image) and gives the config."""

    def write(calibration, test, **data):
        for name, rows in {"calibration": calibration, "test": test}.items():
            text = "\n".join(
                json.dumps({"question": q, "image": i, "references": ["x"]}) for q, i in rows
            )
            (tmp_path / f"{name}.jsonl").write_text(text)
        files = {k: str(tmp_path / f"{k}.jsonl") for k in ("calibration", "test")}
        return make_config({"data": {"source": "files", **files, **data}}, "test")

    return write


def test_a_query_in_both_tables_is_refused(tables, tmp_path, caplog):
    same = tables([("what", "a.png"), ("where", "a.png")], [("what", "a.png")])
    with pytest.raises(InputError, match="1 of 1 test queries are calibration queries too"):
        run_stages(tmp_path / "run", same, only="data")
    other = tables([("what", "a.png")], [("where", "a.png")])
    run_stages(tmp_path / "other", other, only="data")
    assert "1 units" in caplog.text  # the image is in both: said, not refused


def test_a_misspelt_unit_is_refused_and_a_known_one_is_kept(tables, tmp_path):
    config = tables([("what", "a.png")], [("where", "b.png")], unit="scene")
    with pytest.raises(InputError, match="scene"):
        run_stages(tmp_path / "run", config, only="data")
    config = tables([("what", "a.png"), ("how", "a.png")], [("where", "b.png")])
    run_stages(tmp_path / "other", config, only="data")
    units = [q.metadata["unit"] for q in read_asked(tmp_path / "other")]
    assert units[0] == units[1] != units[2]
