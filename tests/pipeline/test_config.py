"""The config: what a file may hold, what is refused, and how the refusal helps."""

from pathlib import Path

import pytest

from fusevlm.config import as_tree, change_config, demo_config, limited, make_config, read_config
from fusevlm.errors import InputError
from fusevlm.settings import Config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_the_demo_file_is_the_demo():
    assert read_config(CONFIGS / "demo.toml") == demo_config()


def test_the_example_for_ones_own_model_can_be_read():
    config = read_config(CONFIGS / "own-vlm.toml")
    assert (config.name, config.data.source, config.adapter.source) == ("own-vlm", "files", "train")


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path):
    config = read_config(written(tmp_path, "[sample]\nn = 7\nlayers = ['last']\n"))
    assert config.name == "mine"
    assert (config.sample.n, config.sample.layers) == (7, ("last",))
    assert config.evaluate == Config().evaluate


def test_a_config_survives_as_plain_data():
    config = demo_config(400, seed=3)
    assert make_config(as_tree(config), "copy") == config
    assert (config.data.n_calibration, config.data.n_test) == (200, 200)


def test_a_limit_only_ever_lowers_the_numbers_of_queries():
    def numbers(tree, limit):
        data = limited(make_config({"name": "mine", "data": tree}, "x"), limit).data
        return data.n_calibration, data.n_test

    assert numbers({"n_calibration": 500, "n_test": 3}, 20) == (20, 3)
    assert numbers({}, 20) == (20, 20)  # 0 is all
    assert numbers({"n_calibration": 500}, None) == (500, 0)
    assert limited(Config(), None) == Config()
    with pytest.raises(InputError, match="--limit is 0; expected a whole number of at least 1"):
        limited(Config(), 0)


def test_a_table_of_test_queries_alone_is_a_config(tmp_path):
    config = read_config(written(tmp_path, "[data]\nsource = 'files'\ntest = 'none.csv'\n"))
    assert (config.data.calibration, config.data.test) == ("", "none.csv")


@pytest.mark.parametrize(
    ("change", "section", "key", "value"),
    [
        ("sample.n=50", "sample", "n", 50),
        ("sample.temperature=0.7", "sample", "temperature", "0.7"),
        ("sample.temperature=uniform", "sample", "temperature", "uniform"),
        ("evaluate.risk=0.1", "evaluate", "risk", 0.1),
        ("sample.half=true", "sample", "half", True),
        ('evaluate.slices=["a", "b"]', "evaluate", "slices", ("a", "b")),
        ("sample.model=some/model", "sample", "model", "some/model"),
        ("sample.model=tiny:llava", "sample", "model", "tiny:llava"),
        ("data.unit=scene", "data", "unit", "scene"),
        ("semantics.meanings=none", "semantics", "meanings", "none"),
        ('score.baselines=["g_nll"]', "score", "baselines", ("g_nll",)),
        ("sample.prompt=Say: {question}=?", "sample", "prompt", "Say: {question}=?"),
    ],
)
def test_set_takes_toml_values_and_bare_words(change, section, key, value):
    config = change_config(Config(), [change])
    assert getattr(getattr(config, section), key) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[smaple]\n", "mine.toml: unknown section 'smaple'. Did you mean 'sample'"),
        ("[sample]\ntemprature = 1\n", r"\[sample\] has no key 'temprature'. Did you mean 'tempe"),
        ("[sample]\nn = 'many'\n", "mine.toml: sample.n is 'many'; expected a whole number"),
        ("[sample]\nn = 2.5\n", "sample.n is 2.5; expected a whole number"),
        ("[sample]\nn = true\n", "sample.n is True; expected a whole number"),
        ("[sample]\nn = -1\n", "sample.n is -1; expected a whole number of at least 0"),
        ("[sample]\nhalf = 1\n", "sample.half is 1; expected true or false"),
        ("[sample]\nlayers = 'last'\n", "sample.layers is 'last'; expected a list of strings"),
        ("sample = 3\n", r"sample is 3; expected a section \[sample\]"),
        ("[evaluate]\nrisk = 2\n", "evaluate.risk is 2.0; expected a number above 0 and below 1"),
        ("[evaluate]\nrisk = 0\n", "evaluate.risk is 0.0; expected a number above 0 and below 1"),
        ("[evaluate]\ncluster = 'a'\n", r"\[evaluate\] has no key 'cluster'"),
        (
            "[semantics]\nmeanings = 'nly'\n",
            "semantics.meanings is 'nly'; expected one of 'string'",
        ),
        ("[semantics]\nmeanings = 'sentences'\n", "needs semantics.similarity too"),
        ("[data]\nunits = 'a'\n", r"\[data\] has no key 'units'. Did you mean 'unit'"),
        ("[score]\nbaseline = ['a']\n", "Did you mean 'baselines'"),
        ("[score]\ncriterion = 'taste'\n", "score.criterion is 'taste'; expected one of 'exact"),
        ("[adapter]\nstatistic = 't'\n", "adapter.statistic is 't'; expected one of 's'"),
        ("[data]\nsource = 'vqav2'\n", "name data.folder, data.n_calibration and data.n_test"),
        ("[sample]\nlayers = []\n", "sample.layers is empty"),
        ("[data]\nsource = 'files'\n", "name data.calibration and data.test"),
        ("[data]\nsource = 'web'\n", "data.source is 'web'; expected one of"),
        ("[adapter]\nsource = 'train'\n", "belong together"),
        ("[score]\nlayer = '7'\n", "sample.layers does not keep"),
        ("[calibrate]\nmethods = []\n", "calibrate.methods is empty"),
        ("[sample\n", "mine.toml is not TOML"),
    ],
)
def test_refusals_name_file_key_and_cure(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_config(written(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("n=3", "expected section.key=value"),
        ("sample.n", "expected section.key=value"),
        ("smple.n=3", "Did you mean 'sample'"),
        ("sample.nn=3", "no key 'nn'"),
    ],
)
def test_bad_changes_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        change_config(Config(), [change])


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_config(tmp_path / "none.toml")


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "a.csv").write_text("question\nwhat\n")
    text = "[data]\nsource = 'files'\ncalibration = 'a.csv'\ntest = 'none.csv'\n"
    config = read_config(written(tmp_path, text))
    assert config.data.calibration == str(tmp_path / "a.csv")
    assert config.data.test == "none.csv"
    assert config.sample.model == "embedded"


def test_the_folder_of_a_registered_model_is_relative_to_the_file_too(tmp_path):
    (tmp_path / "weights").mkdir()
    text = "[sample]\nmodel = 'mine:weights'\n[embed]\ntowers = 'mine:elsewhere'\n"
    config = read_config(written(tmp_path, text))
    assert config.sample.model == f"mine:{tmp_path / 'weights'}"
    assert config.embed.towers == "mine:elsewhere"
