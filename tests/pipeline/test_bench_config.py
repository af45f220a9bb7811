import pytest

from fusevlm.errors import InputError
from fusevlm.pipeline import cost
from fusevlm.pipeline.bench import parse_criterion, read_bench
from fusevlm.pipeline.methods import METHODS
from fusevlm.scores import SCORES

TOML = """
[bench]
rows = "ablations"
samples = [2, 5]
criteria = ["exact_match", "rouge_l@0.3"]
[[dataset]]
name = "one"
source = "embedded"
n_calibration = 500
n_test = 1000
[[dataset]]
name = "two"
source = "embedded"
[[model]]
name = "big"
model = "llava-hf/llava-1.5-13b-hf"
towers = "openai/clip-vit-large-patch14-336"
[[model]]
name = "small"
[sample]
n = 50
"""


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "bench.toml"
        path.write_text(text)
        return path

    return write


def test_places_are_datasets_times_models(config):
    bench = read_bench(config(TOML), ["sample.seed=3"])
    assert list(bench.places) == ["one, big", "one, small", "two, big", "two, small"]
    big = bench.places["one, big"]
    assert (big.sample.model, big.sample.n, big.sample.seed) == (
        "llava-hf/llava-1.5-13b-hf", 50, 3,
    )  # fmt: skip
    assert big.data.n_test == 1000
    assert bench.places["two, small"].sample.model == "embedded"
    assert bench.curves.criteria == (("exact_match", None), ("rouge_l", 0.3))
    assert bench.curves.samples == (2, 5)


def methods(bench):
    (found,) = {place.calibrate.methods for place in bench.places.values()}
    return found


def test_every_place_compares_all_baselines_and_the_rows_of_fuse(config):
    found = methods(read_bench(config(TOML)))
    assert found[: len(SCORES)] == tuple(SCORES)
    assert not any("jitter" in name for name in found)
    assert {"practical", "paper", "prior-only", "paper_mean"} <= set(found)
    every = methods(read_bench(config(TOML.replace('"ablations"', '"all"'))))
    assert every == (*SCORES, *METHODS)
    few = TOML.replace('"ablations"', '["paper"]') + '[score]\nbaselines = ["ntl", "distinct"]\n'
    assert methods(read_bench(config(few))) == ("ntl", "distinct", "paper")
    own = TOML + '[calibrate]\nmethods = ["practical", "g_nll"]\nseed = 7\n'
    bench = read_bench(config(own))
    assert methods(bench) == ("practical", "g_nll")
    assert {place.calibrate.seed for place in bench.places.values()} == {7}


ROWS = (
    TOML
    + """
[[bench.row]]
name = "mine"
preset = "paper"
options = {jitter = 1e-4}
[[bench.sweep]]
option = "z"
values = [0, 1.5]
[[calibrate.row]]
name = "shared"
"""
)


def test_rows_and_sweeps_are_compared_in_every_place(config):
    bench = read_bench(config(ROWS.replace("[2, 5]", '[2, 5]\ncurves = ["mine", "g_nll"]')))
    for place in bench.places.values():
        names = place.calibrate.names()
        assert names[-4:] == ("shared", "mine", "practical_z_0", "practical_z_1.5")
        assert set(names[:-4]) == set(place.calibrate.methods)
    assert bench.curves.methods == ("mine", "g_nll")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{jitter", "{jiter", "big: row 'mine': unknown option 'jiter'. Did you mean 'jitter'"),
        ("= 1e-4}", "= -1}", "row 'mine': jitter is -1; expected"),
        ('preset = "paper"', 'preset = "papre"', "'papre' is not known. Did you mean 'paper'"),
        ('preset = "paper"', 'prset = "paper"', r"\[\[bench.row\]\] has no key 'prset'"),
        ('name = "mine"', 'name = "umpire"', "'umpire' has the name of another method"),
        ('name = "mine"', 'name = "shared"', "two rows are called 'shared'"),
        ('name = "mine"', "", r"\[\[bench.row\]\] has no name"),
        ('option = "z"', 'option = "zz"', "row 'practical_zz_0': unknown option 'zz'"),
        ("[0, 1.5]", '["steep"]', "row 'practical_z_steep': z is 'steep'; expected"),
        ("[0, 1.5]", "[]", r"bench.sweep.values is \[\]; expected a list with at least"),
        ("[[bench.row]]", "[[bench.rov]]", "has no key 'rov'. Did you mean 'row'"),
        ("[2, 5]", '[2, 5]\ncurves = ["mien"]', "method 'mien' is not known. Did you mean 'mine'"),
        ('"exact_match"', '"exact_match@0.5"', "exact_match is 0 or 1 and takes no level"),
        ("[sample]", "[calibrate]\nquantile = 1.5\n[sample]", "calibrate.quantile is 1.5; exp"),
        ('option = "z"\nvalues = [0, 1.5]', 'option = "layer"\nvalues = ["first"]',
         "layer is 'first', which sample.layers does not keep: last, middle"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_named_before_anything_runs(config, old, new, message):
    assert old in ROWS
    with pytest.raises(InputError, match=message):
        read_bench(config(ROWS.replace(old, new, 1)))


def test_a_curve_is_drawn_from_the_layer_of_the_scores(config):
    text = ROWS.replace('name = "mine"', 'name = "mine"\nlayer = "middle"')
    assert read_bench(config(text))
    with pytest.raises(InputError, match=r"bench\.curves: 'mine' reads the layer 'middle'"):
        read_bench(config(text.replace("[2, 5]", '[2, 5]\ncurves = ["mine"]')))


def test_a_limit_is_that_of_every_place(config):
    bench = read_bench(config(TOML), limit=20)
    assert {(p.data.n_calibration, p.data.n_test) for p in bench.places.values()} == {(20, 20)}
    assert read_bench(config(TOML), limit=600).places["one, big"].data.n_calibration == 500
    with pytest.raises(InputError, match="--limit is 0"):
        read_bench(config(TOML), limit=0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[bench]", "[bensh]", "Did you mean 'bench'"),
        ("rows =", "rovs =", "Did you mean 'rows'"),
        ("n_test", "n_tests", "Did you mean 'n_test'"),
        ("towers =", "tower =", "Did you mean 'towers'"),
        ('name = "two"', 'name = "one"', "two \\[\\[dataset\\]\\] are called 'one'"),
        ('name = "small"', "", "has no name"),
        ('"rouge_l@0.3"', '"rouge_l@x"', "NAME@LEVEL"),
        ('"exact_match"', '"exact"', "exact_match"),
        ('rows = "ablations"', 'rows = ["papr"]', "Did you mean 'paper'"),
        ("[2, 5]", "[-1]", "bench.samples is -1; expected a whole number of at least 0"),
        ("samples =", "generations =", "has no key 'generations'. Known are: rows, samples"),
        ("samples =", "sample =", "Did you mean 'samples'"),
        ('rows = "ablations"', 'rows = "most"', "bench.rows is 'most'"),
        ("[bench]", '[bench]\ncurves = ["g_nl"]', "Did you mean 'g_nll'"),
        ("[bench]", '[bench]\ncurves = "g_nll"', "bench.curves is 'g_nll'; expected a list"),
        ("[2, 5]", "5", "bench.samples is 5; expected a list of numbers"),
        ('rows = "ablations"', "rows = 5", "bench.rows is 5; expected a list of strings"),
        ("[[model]]", "[model]", "Cannot|cannot|not TOML|at least one"),
        ("[sample]", "[sampel]", "Did you mean 'sample'"),
    ],
)
def test_mistakes_are_named(config, old, new, message):
    with pytest.raises(InputError, match=message):
        read_bench(config(TOML.replace(old, new)))


@pytest.mark.parametrize("name", ["bench", "evaluate"])
def test_a_value_in_place_of_a_section_is_named(config, name):
    text = f"{name} = 3\n[[dataset]]\n" + TOML.split("[[dataset]]", 1)[1]
    with pytest.raises(InputError, match=rf"{name} is 3; expected a section \[{name}\]"):
        read_bench(config(text))


def test_a_benchmark_needs_datasets_and_models(config):
    with pytest.raises(InputError, match=r"at least one \[\[dataset\]\]"):
        read_bench(config('[[model]]\nname = "a"\n'))
    with pytest.raises(InputError, match=r"at least one \[\[dataset\]\]"):
        read_bench(config("dataset = [1]\n"))
    with pytest.raises(InputError, match="cannot read"):
        read_bench("nowhere.toml")


def test_criteria_with_and_without_a_level():
    assert parse_criterion("vqa_accuracy", "x") == ("vqa_accuracy", None)
    assert parse_criterion("rouge_l@0.7", "x") == ("rouge_l", 0.7)


def test_official_files_are_named_with_their_size(config):
    text = """
[[dataset]]
name = "VQA"
source = "vqav2"
folder = "vqa"
images = "coco"
n_calibration = 1
n_test = 2
[[model]]
name = "m"
"""
    (place,) = read_bench(config(text)).places.values()
    found = {need.source: need for need in cost.needs(place)}
    questions = found["vqa/v2_OpenEnded_mscoco_val2014_questions.json"]
    assert not questions.there
    assert questions.about
    assert questions.gigabytes == pytest.approx(0.02, rel=0.1)
    assert found["coco/val2014"].gigabytes == 6.65
    with pytest.raises(InputError, match=r"name data\.folder"):
        read_bench(config(text.replace('folder = "vqa"', "")))
