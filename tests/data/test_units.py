"""What is resampled together."""

import numpy as np
import pytest
from PIL import Image

from fusevlm.data.questions import queries
from fusevlm.data.units import units_of
from fusevlm.errors import InputError
from fusevlm.types import Query


def query(name, *images, **metadata):
    return Query(name, "what?", images, metadata=metadata)


def test_queries_about_one_image_are_one_unit(tmp_path):
    a, b, c, both = units_of(
        [
            query("a", tmp_path / "x.png"),
            query("b", f"{tmp_path}/./x.png"),
            query("c", tmp_path / "y.png"),
            query("d", tmp_path / "x.png", tmp_path / "y.png"),
        ]
    )
    assert a == b == str(tmp_path / "x.png")
    assert len({a, c, both}) == 3
    assert both == f"{a}|{c}"


def test_a_query_without_an_image_is_a_unit_of_its_own():
    assert units_of([query("a"), query("b", "x.png"), query("c")]) == ["a", "x.png", "c"]


def test_pictures_in_memory_go_by_their_id_or_their_content():
    black, white = (Image.fromarray(np.full((4, 4, 3), v, np.uint8)) for v in (0, 255))
    one, copy, other = units_of([query("a", black), query("b", black.copy()), query("c", white)])
    assert one == copy != other
    assert units_of([query("a", b"png"), query("b", b"png")])[0] != "a"
    named = [query("a", black, image_id=7), query("b", white, image_id=7)]
    assert units_of(named) == ["7", "7"]


def test_all_views_of_an_embedded_scene_are_one_unit():
    found = queries("test", limit=40)
    assert units_of(found) == units_of(found, "image_id") == [q.metadata["image_id"] for q in found]


def test_a_named_column_decides():
    found = [query("a", "x.png", place=1), query("b", "x.png", place=2), query("c", place=1)]
    assert units_of(found, "place") == ["1", "2", "1"]


def test_a_column_that_is_not_there_is_an_error():
    found = [query("a", image_id=1, kind="x"), query("b", image_id=1, kind="y")]
    with pytest.raises(InputError, match=r"'imageid', which query 'a' lacks\. Did you mean 'im"):
        units_of(found, "imageid")
    with pytest.raises(InputError, match=r"lacks\. Known are: image_id, kind"):
        units_of(found, "whatever")
    for missing in (None, float("nan")):
        with pytest.raises(InputError, match=r"'kind', which query 'c' lacks\. Fill it in"):
            units_of([*found, query("c", kind=missing)], "kind")
    with pytest.raises(InputError, match="Known are: none"):
        units_of([query("a")], "kind")
