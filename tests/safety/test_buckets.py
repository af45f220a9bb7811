"""Parts in a bucket: the same as in a folder, killed and resumed; a bucket that cannot be used."""

import shutil

import pytest
from tests.pipeline.synthetic_runs import (
    config_of,
    differing,
    results,
    toml_of,
    tree_of,
    write_tables,
)
from tests.safety.buckets import KEYS, serving
from tests.safety.clusters import Command

from fusevlm.errors import ArtefactError
from fusevlm.pipeline.cluster.mirror import fetch, publish
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.run import run_stages
from fusevlm.pipeline.verify import repair, verify
from fusevlm.store.generations import read_generations
from fusevlm.store.places import Bucket, point_of

pytest.importorskip("moto")
pytestmark = pytest.mark.slow
OF_PARTS = ("sample", "embed", "semantics", "score")


@pytest.fixture(scope="module", autouse=True)
def keys():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def moto(tmp_path_factory, keys):
    with serving(tmp_path_factory.mktemp("moto") / "log.txt") as found:
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Tables, and a run whose parts are in its folder."""
    home = tmp_path_factory.mktemp("buckets")
    write_tables(home)
    run_stages(home / "alone", config_of(home))
    return home


def gathered(run, to):
    """A copy of a run whose parts are brought from their bucket into its folder."""
    shutil.copytree(run, to)
    for stage in OF_PARTS:
        if (run / stage / "place.json").is_file():
            place = point_of(run / stage)
            for name in place.names():
                (to / stage / name).write_bytes(place.read(name))
    return to


def test_parts_in_a_bucket_are_those_of_a_folder(home, moto, tmp_path):
    run = tmp_path / "run"
    run_stages(run, config_of(home, storage={"parts": moto.address("some/where")}))
    assert not list(run.glob("*/part-*"))
    assert len(point_of(run / "sample").names()) == 3 * 17
    assert differing(home / "alone", gathered(run, tmp_path / "gathered")) == []
    assert verify(run) == []


def test_killed_and_resumed(home, moto, tmp_path, tally):
    """In the middle of the sampling, five times, in a process of its own."""
    slow = {"model": "synthetic:d=24,seconds=0.02"}
    tree = tree_of(home, sample=slow, storage={"parts": moto.address("killed")})
    (tmp_path / "config.toml").write_text(toml_of(tree))
    run, kills = tmp_path / "run", 0
    words = ["run", tmp_path / "config.toml", "--run", run]

    def n_parts():
        there = (run / "sample" / "place.json").is_file()
        names = point_of(run / "sample").names() if there else []
        return sum(name.endswith(".json") for name in names)

    for number in range(5):
        command, at = Command(words, tmp_path / f"{number}.txt"), n_parts() + 2
        command.wait_for(lambda at=at: n_parts() >= at, f"{at} parts")
        command.process.kill()
        command.end()
        kills += 1
    assert n_parts() < 17
    command = Command(words, tmp_path / "last.txt")
    assert command.end() in (0, 3), command.said()
    asked = [query.id for query in read_asked(run)]
    assert [g.query_id for g in read_generations(run / "sample")] == asked
    whole = gathered(run, tmp_path / "gathered")
    assert differing(home / "alone", whole) == []
    tally(f"run with parts in a bucket: {kills} kills; every query once, 0 files differ")


def test_a_part_that_was_lost_in_the_bucket_is_found_out_and_repaired(home, moto, tmp_path):
    run = tmp_path / "run"
    config = config_of(home, storage={"parts": moto.address("lost")})
    run_stages(run, config, to="sample")
    place = point_of(run / "sample")
    whole = place.read("part-00003.parquet")
    place.save("part-00003.parquet", b"spoilt")
    with pytest.raises(ArtefactError, match=r"s3://parts/lost/.*part-00003\.parquet"):
        list(read_generations(run / "sample"))
    assert verify(run)
    repair(run)
    run_stages(run, config, to="sample")
    assert place.read("part-00003.parquet") == whole
    assert verify(run) == []


def test_small_files_of_a_run_go_to_workers_that_do_not_see_it(home, moto, tmp_path):
    run = tmp_path / "run"
    config = config_of(home, storage={"parts": moto.address("mirror")})
    run_stages(run, config, to="sample")
    copy = fetch(publish(run, "sample"))
    try:
        found = results(copy)
        assert "data/queries.parquet" in found
        assert found.items() <= results(run).items()
        assert (copy / "sample" / "place.json").is_file()
        assert [query.id for query in read_asked(copy)] == [q.id for q in read_asked(run)]
    finally:
        shutil.rmtree(copy)


def refused(home, run, address):
    with pytest.raises(ArtefactError) as caught:
        run_stages(run, config_of(home, storage={"parts": address}))
    assert not list(run.glob("sample/part-*"))
    said = str(caught.value)
    assert "Correct the address, or the credentials in the environment" in said
    return said


def test_a_bucket_that_is_not_there(home, moto, tmp_path):
    said = refused(home, tmp_path / "run", moto.address("x", bucket="nowhere"))
    assert "s3://nowhere/x/run-" in said


def test_a_server_that_is_not_there(home, tmp_path):
    address = "s3://parts/x?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:9"
    assert "s3://parts/x/run-" in refused(home, tmp_path / "run", address)


def test_a_bucket_that_forbids(home, tmp_path):
    with serving(tmp_path / "log.txt") as own:
        own.forbid()
        said = refused(home, tmp_path / "run", own.address("x"))
    assert "s3://parts/x/run-" in said
    assert "ACCESS" in said.upper() or "FORBIDDEN" in said.upper() or "INVALID" in said.upper()


def test_names_and_objects(moto):
    place = Bucket(moto.address("objects/sample"))
    assert place.names() == []
    assert not place.has("a")
    with pytest.raises(FileNotFoundError):
        place.read("a")
    place.remove("a")
    place.save("b", b"2")
    place.save("a", b"1")
    assert place.names() == ["a", "b"]
    place.rename("b", "c")
    assert (place.names(), place.read("c"), place.name) == (["a", "c"], b"2", "sample")
    place.remove("a")
    assert place.names() == ["c"]
    sums = place.digests(["c", "none"])
    assert sums["c"] != sums["none"]
