"""Models that other packages register, and how a source is read."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.models.conftest import make_query

from fusevlm.errors import InputError, MissingExtraError
from fusevlm.models import registry
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model, local_input, registered, split_source
from fusevlm.models.temperatures import constant
from fusevlm.testing import tiny
from fusevlm.testing.contract import run_contract

MODULE = """
from tests.models.toy import Toy


class Shouts(Toy):
    def __init__(self, source, decoding, loud):
        self.name, self.decoding, self.loud = f"shouts {source}", decoding, loud


def load(source, *, decoding, loud=False):
    return Shouts(source, decoding, loud)


def load_any(source, *, decoding, **options):
    model = Shouts(source, decoding, False)
    model.options = options
    return model


def load_nothing(source, *, decoding):
    return object()


def load_odd(source, *, decoding):
    model = Shouts(source, decoding, False)
    model.capabilities = {"logprobs": True}
    return model


number = 3
"""
ENTRY_POINTS = """\
[fusevlm.models]
shouts = shouting:load
any = shouting:load_any
nothing = shouting:load_nothing
odd = shouting:load_odd
number = shouting:number
gone = shouting:no_such_name
broken = broken_module:load
"""


def install(folder, name="shouting", entries=ENTRY_POINTS):
    """A package as pip leaves it: a module, and what it says of itself."""
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entries)
    (folder / f"{name}.py").write_text(MODULE)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that python finds."""
    install(tmp_path)
    (tmp_path / "broken_module.py").write_text("raise OSError('no such driver')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("shouting", "broken_module"):
        sys.modules.pop(name, None)


def test_a_model_of_another_package_answers(site):
    assert {"shouts", "huggingface", "tiny"} <= set(registered())
    model = load_model("shouts:a:b c", Decoding(max_new_tokens=7), loud=True)
    assert (model.name, model.decoding.max_new_tokens, model.loud) == ("shouts a:b c", 7, True)
    (found,) = model.sample([make_query(0)], 3, constant(3), seed=0)
    assert (found.error, len(found.samples), found.query_id) == (None, 3, "q0")
    assert not [o for o in run_contract(model) if o.failed]


def test_the_command_knows_it_too(site):
    words = [sys.executable, "-m", "fusevlm.testing", "shouts:x"]
    home = Path(registry.__file__).parents[2]
    path = ":".join(map(str, (site, home, Path(__file__).parents[2])))
    found = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": path})
    assert found.returncode == 0, found.stdout + found.stderr
    assert "shouts x: 20 ok, 0 failed, 2 skipped" in found.stdout


def test_options_go_to_those_that_take_them(site):
    assert load_model("shouts:x", dtype="auto", device_map=None).name == "shouts x"
    with pytest.raises(InputError, match="models of 'shouts' take no dtype; got 'float16'"):
        load_model("shouts:x", dtype="float16")
    given = load_model("any:x", dtype="float16", device_map=None).options
    assert given == {"dtype": "float16"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("shout:x", "registered as 'shout'. Did you mean 'shouts'.*Install the package"),
        ("nothing:x", "a object without name, capabilities, sample"),
        ("odd:x", "loaded with the capabilities {'logprobs': True}"),
        ("number:x", "shouting:number, a int; expected a function"),
        ("gone:x", "cannot be imported: AttributeError"),
        ("broken:x", "cannot be imported: OSError: no such driver"),
    ],
)
def test_what_is_wrong_with_a_registered_model_is_said(site, source, message):
    with pytest.raises(InputError, match=message):
        load_model(source)


def test_two_packages_of_one_name_are_refused_unless_they_claim_ours(site):
    install(site, "other", "[fusevlm.models]\nhuggingface = nowhere:load\nshouts = other:load\n")
    with pytest.raises(InputError, match="two packages register the model 'shouts'"):
        load_model("shouts:x")
    assert registry.OURS["huggingface"].value.startswith("fusevlm.")
    assert load_model("tiny:llava").name == "tiny:llava"


def test_ours_are_those_of_the_project_file():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    declared = project["project"]["entry-points"]["fusevlm.models"]
    assert declared == {name: entry.value for name, entry in registry.OURS.items()}


def test_how_a_source_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine:1").mkdir()
    for source, expected in {
        "embedded": ("huggingface", "embedded"),
        "llava-hf/llava-1.5-13b-hf": ("huggingface", "llava-hf/llava-1.5-13b-hf"),
        "C:\\models\\vlm": ("huggingface", "C:\\models\\vlm"),
        "./a:b": ("huggingface", "./a:b"),
        "mine:1": ("huggingface", "mine:1"),  # a path that exists
        "mine:2": ("mine", "2"),
        "huggingface:./folder": ("huggingface", "./folder"),
        "my-models:http://host:80/v1": ("my-models", "http://host:80/v1"),
    }.items():
        assert split_source(source) == expected
    assert local_input("sample.model", "huggingface:mine:1", "vlm") == {
        "sample.model": Path("mine:1")
    }
    assert local_input("sample.model", "mine:2", "vlm") == {}


def test_a_folder_with_and_without_its_name(tmp_path):
    folder = tiny.save("llava", tmp_path / "vlm")
    texts = []
    for source in (folder, f"huggingface:{folder}"):
        model = load_model(source, Decoding(max_new_tokens=3), dtype="float32", device_map=None)
        assert isinstance(model, HuggingFace)
        (found,) = model.sample([make_query(0)], 3, constant(3), seed=0)
        texts.append(found.samples.texts)
    assert texts[0] == texts[1]


def test_the_embedded_model_comes_by_name():
    model = load_model("embedded")
    (found,) = model.sample([make_query(0)], 2, np.ones(2), seed=0)
    assert found.error is None


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fusevlm\[torch\]'"):
        load_model("llava-hf/llava-1.5-13b-hf")


def test_neither_the_registry_nor_the_contract_needs_torch():
    code = (
        "import sys, fusevlm.models.registry, fusevlm.testing.contract;"
        "fusevlm.models.registry.registered();"
        "assert not {'torch', 'transformers', 'PIL'} & set(sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
