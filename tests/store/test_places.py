"""Where parts lie: addresses that can be written down, and a pointer that is kept to."""

import json

import pytest

from fusevlm.errors import ArtefactError, InputError
from fusevlm.store.places import (
    POINTER,
    Folder,
    below,
    checked_address,
    copy_in,
    copy_out,
    is_address,
    place_of,
    point_of,
    point_to,
)


@pytest.mark.parametrize(
    "address",
    [
        "s3://key:secret@bucket/x",
        "s3://key@bucket/x",
        "s3://bucket/x?access_key=AKIA&region=eu",
        "s3://bucket/x?region=eu&SECRET_KEY=abc",
        "gs://bucket/x?access_token=abc",
        "s3://bucket/x?session_token=abc",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(address):
    with pytest.raises(InputError, match="Put it into the environment") as caught:
        checked_address(address)
    for secret in ("secret@", "AKIA", "abc"):
        assert secret not in str(caught.value)


@pytest.mark.parametrize("address", ["", "bucket/x", "/tmp/x", "s3:///x", "http://host/x", "s3:x"])
def test_what_is_no_bucket_is_refused(address):
    with pytest.raises(InputError, match="is no bucket; expected s3://BUCKET/WHERE"):
        checked_address(address)


def test_addresses_keep_their_options_at_the_end():
    assert below("s3://b/x/?region=eu", "run") == "s3://b/x/run?region=eu"
    assert below("gs://b", "run") == "gs://b/run"
    assert is_address("gs://b/x")
    assert not is_address("runs/x")


def test_runs_of_one_name_do_not_meet_in_a_bucket(tmp_path):
    found = []
    for home in ("a", "b"):
        stage = tmp_path / home / "run" / "sample"
        point_to(stage, "s3://bucket/where?region=eu")
        found.append(json.loads((stage / POINTER).read_text())["parts"])
        again = (stage / POINTER).read_bytes()
        point_to(stage, "s3://other")  # it was begun: it stays where it is
        assert (stage / POINTER).read_bytes() == again
    assert found[0] != found[1]
    for address in found:
        assert address.startswith("s3://bucket/where/run-")
        assert address.endswith("/sample?region=eu")


def test_a_stage_that_was_begun_in_its_folder_stays_there(tmp_path):
    stage = tmp_path / "run" / "sample"
    Folder(stage).save("part-00000.json", b"{}")
    point_to(stage, "s3://bucket/where")
    assert not (stage / POINTER).exists()
    assert place_of(stage).folder == stage


@pytest.mark.parametrize("noted", [{}, {"parts": 3}])
def test_a_pointer_that_names_no_place_is_refused(tmp_path, noted):
    (tmp_path / POINTER).write_text(json.dumps(noted))
    with pytest.raises(ArtefactError, match="names no place"):
        point_of(tmp_path)


def test_a_pointer_with_a_secret_is_refused(tmp_path):
    (tmp_path / POINTER).write_text(json.dumps({"parts": "s3://a:b@c/d"}))
    with pytest.raises(InputError, match="holds a key"):
        place_of(tmp_path)


def test_files_are_copied_out_once_and_back(tmp_path):
    run, place = tmp_path / "run", Folder(tmp_path / "there")
    (run / "data").mkdir(parents=True)
    (run / "data" / "q").write_bytes(b"one")
    names = {"data%2Fq": run / "data" / "q"}
    copy_out(place, names)
    first = (place.path / "data%2Fq").stat().st_mtime_ns
    copy_out(place, names)
    assert (place.path / "data%2Fq").stat().st_mtime_ns == first
    (run / "data" / "q").write_bytes(b"two")
    copy_out(place, names)
    copy_in(place, place.names(), tmp_path / "back")
    assert (tmp_path / "back" / "data" / "q").read_bytes() == b"two"
