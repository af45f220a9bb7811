import pytest
from fusevlm.pipeline.ablations import ABLATIONS
from fusevlm.pipeline.bench_config import parse_criterion, read_bench

from fusevlm.errors import InputError
from fusevlm.pipeline import cost

TOML = """
[bench]
rows = "ablations"
generations = [2, 5]
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
    assert bench.compare.criteria == (("exact_match", None), ("rouge_l", 0.3))
    assert not any("jitter" in name for name in bench.compare.rows)
    assert read_bench(config(TOML.replace('"ablations"', '"all"'))).compare.rows == tuple(ABLATIONS)


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
        ("[2, 5]", "[1]", "generations"),
        ("[[model]]", "[model]", "Cannot|cannot|not TOML|at least one"),
        ("[sample]", "[sampel]", "Did you mean 'sample'"),
    ],
)
def test_mistakes_are_named(config, old, new, message):
    with pytest.raises(InputError, match=message):
        read_bench(config(TOML.replace(old, new)))


def test_a_benchmark_needs_datasets_and_models(config):
    with pytest.raises(InputError, match=r"at least one \[\[dataset\]\]"):
        read_bench(config('[[model]]\nname = "a"\n'))
    with pytest.raises(InputError, match="cannot read"):
        read_bench("nowhere.toml")


def test_criteria_with_and_without_a_level():
    assert parse_criterion("vqa_accuracy", "x") == ("vqa_accuracy", None)
    assert parse_criterion("rouge_l@0.7", "x") == ("rouge_l", 0.7)


def test_the_estimate_is_its_formula(config):
    """By hand: 1,500 queries × 2 × 13.35e9 × (616 + 50 × 3) tokens at 100 TFLOP/s."""
    place = read_bench(config(TOML)).places["one, big"]
    found = cost.estimate(place, 100.0)
    assert found.hours == pytest.approx(1500 * 2 * 13.35e9 * 766 / 1e14 / 3600)
    assert found.hours == pytest.approx(0.0852, abs=1e-4)
    assert cost.estimate(place, 200.0).hours == pytest.approx(found.hours / 2)
    assert found.most_hours > found.hours
    assert found.gigabytes == pytest.approx(1500 * 50 * 5120 * 2 * 4 / 1e9)


def test_the_dry_run_lists_each_need_once(config):
    text = cost.report(read_bench(config(TOML)).places)
    assert text.count("llava-hf/llava-1.5-13b-hf  (26.7 GB") == 1
    assert "openai/clip-vit-large-patch14-336  (1.71 GB, to be fetched" in text
    assert cost.FORMULA in text
    assert "two, big: all queries" in text


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
