"""States reduced where they are made: the figures of a run that keeps everything, in less room."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from tests.pipeline.synthetic_runs import config_of, differing, results, write_tables
from tests.pipeline.test_cluster import Elsewhere

from fusevlm.errors import InputError
from fusevlm.pipeline.cluster import mirror
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.reduction import MARK, MOST_FULL, decide, load_reduction
from fusevlm.pipeline.run import run_stages
from fusevlm.store import places
from fusevlm.store.generations import KIND, read_generations
from fusevlm.store.parts import Parts
from fusevlm.store.places import Bucket, Folder
from fusevlm.store.tables import read_parquet
from fusevlm.testing import synthetic

D, N, KNOWN = 400, 5, 60
MODEL = {"model": f"synthetic:d={D}"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The same run twice: with all states, and with reduced ones."""
    home = tmp_path_factory.mktemp("reduction")
    write_tables(home, n_calibration=KNOWN)
    methods = {"methods": ["practical", "practical_whitening_low_rank", "umpire", "eigenscore"]}
    for states in ("full", "reduced"):
        config = config_of(home, sample={**MODEL, "states": states}, calibrate=methods)
        run_stages(home / states, config, to="evaluate")
    return home


def numbers(value):
    """All numbers of a tree, in order."""
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in numbers(value[key])]
    if isinstance(value, list):
        return [x for one in value for x in numbers(one)]
    return [value] if isinstance(value, float) else []


def test_the_figures_are_those_of_all_states(home):
    full, reduced = (
        numbers(json.loads((home / states / "evaluate" / "results.json").read_text()))
        for states in ("full", "reduced")
    )
    assert len(full) > 200
    np.testing.assert_allclose(reduced, full, rtol=1e-9, atol=1e-12)


UNWHITENED = [
    {"name": f"{normalize}-{center}", "preset": "paper",
     "options": {"whitening": "none", "center": center, "normalize": normalize}}
    for normalize in ("none", "before")
    for center in ("none", "global")
]  # fmt: skip


def scores_of(home, run, **sections):
    """u of every method, of a run with all states and of one with reduced ones."""
    found = []
    for states in ("full", "reduced"):
        config = config_of(home, **{**sections, "sample": {"states": states}})
        run_stages(run / states, config, to="evaluate")
        stored = read_parquet(run / states / "evaluate" / "predictions.parquet")
        found.append({name: stored[name] for name in stored if name.endswith(".u")})
    return found


def test_forms_that_do_not_whiten_are_told_apart(home, tmp_path):
    """By what is done to the states before: their whitening is one and the same."""
    calibrate = {"methods": ["paper"], "row": UNWHITENED}
    full, reduced = scores_of(home, tmp_path, calibrate=calibrate)
    assert list(full) == ["paper.u", *(f"{row['name']}.u" for row in UNWHITENED)]
    for name, values in full.items():
        np.testing.assert_allclose(reduced[name], values, rtol=1e-9, err_msg=name)
    assert full["none-none.u"] != full["before-none.u"]


@pytest.fixture
def unlike(monkeypatch):
    """A model whose layers are not the same numbers in another order."""
    monkeypatch.setattr(synthetic, "_turned", lambda rows, k: rows if k == 0 else rows**3)


def test_a_row_of_another_layer_has_its_own_whitening(home, tmp_path, unlike):
    """Not told only when all queries are sampled."""
    rows = [{"name": "further", "preset": "paper", "layer": "middle"},
            {**UNWHITENED[0], "name": "plain", "layer": "middle"}, UNWHITENED[0]]  # fmt: skip
    calibrate = {"methods": ["paper"], "row": rows}
    full, reduced = scores_of(home, tmp_path, calibrate=calibrate)
    assert full.keys() == reduced.keys()
    for name, values in full.items():
        np.testing.assert_allclose(reduced[name], values, rtol=1e-9, err_msg=name)
    assert full["plain.u"] != full["none-none.u"]


def test_scores_of_another_layer_are_not_made_of_what_was_kept_of_this_one(home, tmp_path, unlike):
    """score.layer is changed when all is sampled: scores of its states are absent, not others."""
    scores = {"baselines": ["g_nll", "umpire", "eigenscore", "eigenscore_last"]}
    config = config_of(home, sample={"states": "reduced"}, score=scores)
    run_stages(tmp_path / "run", config, to="sample")
    config = config_of(home, sample={"states": "reduced"}, score={**scores, "layer": "middle"})
    run_stages(tmp_path / "run", config, to="score")
    absent = json.loads((tmp_path / "run" / "score" / "absent.json").read_text())
    assert set(absent) == {"umpire", "eigenscore_last"}
    assert "'embeddings unit' was not kept of some query" in absent["umpire"]


def test_a_calibration_query_without_the_picture_that_others_have(tmp_path):
    """It is answered and not embedded: methods are fitted without it, and so are whitenings."""
    write_tables(tmp_path, n_calibration=40, n_test=20)
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    for split in ("calibration", "test"):
        path = tmp_path / f"{split}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        shown = [row | {"images": ["red.png"]} for row in rows]
        shown[3] = rows[3] if split == "calibration" else shown[3]
        path.write_text("\n".join(map(json.dumps, shown)))
    config = config_of(
        tmp_path, sample={"states": "reduced"}, embed={"towers": "embedded"},
        calibrate={"methods": ["paper"]}, rounds={"use": False},
    )  # fmt: skip
    found = run_stages(tmp_path / "run", config, to="evaluate")
    assert (found["sample"].counts["failed"], found["embed"].counts["failed"]) == (0, 1)
    assert found["calibrate"].counts["queries"] == 39
    assert found["evaluate"].counts["queries"] == 20


def test_of_test_queries_no_state_of_a_sample_is_left(home):
    parts = Parts(home / "reduced" / "sample", KIND)
    first = parts.read(0)  # calibration: all is kept
    assert first.arrays["0.last"].shape == (N, D)
    last = parts.read(len(parts) - 1)
    shapes = {name: values.shape for name, values in last.arrays.items()}
    assert set(shapes.values()) == {(N, N), (D,)}
    assert sum(shape == (D,) for shape in shapes.values()) == 2 * last.facts["queries"]


def test_what_is_stored_does_not_grow_with_the_samples_states(home):
    def size(states):
        files = results(home / states, ["sample"])
        return sum(len(files[name]) for name in files if "part-0001" in name)

    assert size("reduced") < 0.5 * size("full")


def test_without_calibration_queries_there_is_nothing_to_whiten_by(tmp_path):
    write_tables(tmp_path, n_calibration=0)
    config = config_of(tmp_path, data={"calibration": ""}, sample={"states": "reduced"})
    with pytest.raises(InputError, match="there are none"):
        run_stages(tmp_path / "run", config, to="sample")


class Many:
    """Queries of which only the number is known."""

    def __init__(self, n_calibration, size):
        self.n_calibration, self.size = n_calibration, size

    def __len__(self):
        return self.size


@pytest.mark.parametrize(
    ("states", "size", "expected"),
    [
        ("auto", MOST_FULL, False),
        ("auto", MOST_FULL + 1, True),
        ("full", MOST_FULL + 1, False),
        ("reduced", 200, True),
    ],
)
def test_by_itself_from_so_many_queries_on(home, tmp_path, states, size, expected):
    config = config_of(home, sample={"states": states})
    assert decide(config, tmp_path, Many(100, size)) is expected
    assert (tmp_path / MARK).is_file() is expected
    assert decide(config, tmp_path, Many(100, 200)) is expected  # what was begun is kept to


class Stops(Exception):
    """Raised by progress, as Ctrl-C would be."""


def after(n_queries):
    def progress(stage):
        def show(done, total, note=""):
            if stage == "sample" and done >= n_queries:
                raise Stops

        return show

    return progress


@pytest.fixture
def pail(tmp_path, monkeypatch):
    """A bucket that is a folder of this machine."""

    class Pail(Folder):
        folder = None
        beside = Bucket.beside

        def __init__(self, address):
            self.address = address
            super().__init__(tmp_path / "pail" / address.removeprefix("s3://"))

    for room in (places, mirror):
        monkeypatch.setattr(room, "Bucket", Pail)
    return {"parts": "s3://pail/where"}


def test_in_a_bucket_too_what_was_begun_is_kept_to(home, pail, tmp_path):
    """Parts that are cut anew would hold some queries twice."""
    for number, states in enumerate(["full", "reduced"]):
        sample = {**MODEL, "states": states}
        config = config_of(home, sample=sample, storage=pail)
        if number == 0:
            with pytest.raises(Stops):
                run_stages(tmp_path / "run", config, progress=after(80))
    run_stages(tmp_path / "run", config, to="sample")
    asked = [query.id for query in read_asked(tmp_path / "run")]
    assert [g.query_id for g in read_generations(tmp_path / "run" / "sample")] == asked


def test_workers_that_do_not_see_the_run_keep_to_it_too(home, pail, tmp_path):
    run, config = tmp_path / "run", config_of(home, sample={"states": "reduced"}, storage=pail)
    run_stages(run, config, to="sample")
    copy = mirror.fetch(mirror.publish(run, "sample"))
    now = config_of(home, sample={"states": "full"}, storage=pail)
    assert decide(now, copy / "sample", read_asked(copy))
    assert load_reduction(copy / "sample") is not None
    shutil.rmtree(copy)


def test_a_whitening_is_fitted_once(home):
    kept = load_reduction(home / "reduced" / "sample")
    prints = [one.whitener.fingerprint for one in kept.whitenings]
    assert len(prints) == len(set(prints)) >= 2
    assert load_reduction(home / "full" / "sample") is None


def late_picture(home):
    """A run one of whose calibration queries is about a picture that is not there yet."""
    write_tables(home)
    rows = [json.loads(line) for line in (home / "calibration.jsonl").read_text().splitlines()]
    rows[5]["images"] = ["late.png"]
    (home / "calibration.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return config_of(home, sample={"states": "reduced"})


def test_a_finished_run_outlives_a_calibration_query_that_could_be_answered_now(tmp_path):
    config, said = late_picture(tmp_path), []
    first = run_stages(tmp_path / "run", config, to="sample")["sample"]
    before = results(tmp_path / "run")
    Image.new("RGB", (8, 8)).save(tmp_path / "late.png")
    again = run_stages(tmp_path / "run", config, to="sample", say=said.append)["sample"]
    assert (first.counts["failed"], again.counts) == (1, first.counts)
    assert results(tmp_path / "run") == before
    assert any("1 calibration query failed and will not be tried again" in one for one in said)


def test_before_test_queries_are_asked_a_failed_calibration_query_is_tried_again(tmp_path):
    config = late_picture(tmp_path)
    with pytest.raises(Stops):
        run_stages(tmp_path / "run", config, to="sample", progress=after(KNOWN // 2))
    Image.new("RGB", (8, 8)).save(tmp_path / "late.png")
    assert run_stages(tmp_path / "run", config, to="sample")["sample"].counts["failed"] == 0


def test_workers_do_not_try_a_calibration_query_again_once_it_is_counted_out(tmp_path):
    """Its picture comes between the calibration queries and the others, of one command."""

    class Late(Elsewhere):
        def fill(self, job, work):
            super().fill(job, work)
            Image.new("RGB", (8, 8)).save(tmp_path / "late.png")

    config = late_picture(tmp_path)
    run_stages(tmp_path / "one", config, to="sample")
    run_stages(tmp_path / "two", config, to="sample", engine=Late())
    assert differing(tmp_path / "one", tmp_path / "two") == []
