"""The weights that come with the package: small, whole, and as good as their card says."""

import json

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import fusevlm
from factory import measure, models
from fusevlm.data.questions import make_query, package_questions
from fusevlm.data.scenes import split
from fusevlm.embedded import VARIABLE, weights_folder


@pytest.fixture(scope="module", autouse=True)
def shipped():
    """Our own weights, whatever the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        yield weights_folder()


def test_they_are_small_and_half_precision(shipped):
    files = [path for path in shipped.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 18e6
    assert {path.name for path in shipped.iterdir()} == {
        "dual_encoder", "vlm", "question_generator", "adapter", "fuse", "metrics.json",
    }  # fmt: skip
    for part in ("dual_encoder", "vlm", "question_generator"):
        weights = load_file(shipped / part / "model.safetensors")
        assert {str(array.dtype) for array in weights.values()} == {"float16"}


def test_clean_accuracy_is_what_the_card_says(shipped):
    """On dev images, one question of every kind each; the bar of the design is 0.95."""
    vlm = models.load(shipped / "vlm")
    queries = measure.clean_queries("dev", split("dev"))
    known = [q for q in queries if measure.condition(q) == measure.KNOWN]
    found = measure.is_right(vlm, known)
    assert len(known) > 500
    assert found.mean() >= 0.95


@pytest.fixture(scope="module")
def assistant(shipped):
    return fusevlm.load("embedded")


def scene_query(k):
    scene = split("dev")[k]
    asked = next(a for a in package_questions(scene) if a.kind == "color")
    return make_query("dev", scene, asked, "clean", 0)


def test_ask_answers_a_clean_question_and_abstains_on_noise(assistant):
    query = scene_query(3)
    clear = assistant.ask(query.images[0], query.question)
    assert clear.answer == query.references[0]
    assert sum(clear.samples.values()) == 20
    assert clear.p_wrong < 0.3
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    unclear = assistant.ask(Image.fromarray(noise), query.question)
    assert unclear.p_wrong > clear.p_wrong
    assert unclear.m0 > clear.m0
    assert json.loads(json.dumps(clear.as_dict()))["decision"] in ("answer", "abstain")


def test_the_same_seed_gives_the_same_answer(assistant):
    query = scene_query(5)
    one = assistant.ask(query.images[0], query.question, seed=4)
    two = assistant.ask(query.images[0], query.question, seed=4)
    assert one == two
