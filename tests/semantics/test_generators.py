"""Question generators of any kind, and the devices models are loaded on."""

import numpy as np
import pytest
import torch
from tests.models.conftest import make_query

from fusevlm.config import make_config, used_devices
from fusevlm.errors import InputError, MissingExtraError
from fusevlm.models.devices import need_device
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.image_to_text import ImageToText
from fusevlm.models.protocol import Decoding
from fusevlm.models.towers import SentenceEncoder, Towers
from fusevlm.semantics.inference import NliModel
from fusevlm.semantics.rephrase import ANOTHER, FROM_ANSWER, by_generator
from fusevlm.testing import tiny, tiny_helpers

ANSWERS = ["red", "a circle", "2"]


@pytest.fixture(scope="module")
def blip(tmp_path_factory):
    return tiny_helpers.save_blip(tmp_path_factory.mktemp("blip"))


@pytest.fixture(scope="module")
def queries():
    return [make_query(i) for i in range(3)]


def test_a_model_without_chat_asks_from_image_and_answer(blip, queries):
    made = by_generator(blip)
    assert isinstance(made.backend, ImageToText)
    assert made.wording == FROM_ANSWER
    found = made.rephrase(queries, ANSWERS, 3, seed=1)
    assert [len(texts) for texts in found] == [3, 3, 3]
    words = {word for texts in found for text in texts for word in text.split()}
    assert words <= {*tiny.WORDS, "\n"}
    # what it was told is not part of what it asks
    assert not any(text.startswith("answer") for texts in found for text in texts)
    assert made.rephrase(queries, ANSWERS, 3, seed=1) == found
    assert made.rephrase(queries, ANSWERS, 3, seed=2) != found
    # a query's questions do not depend on its neighbours
    assert made.rephrase(queries[1:2], ANSWERS[1:2], 3, seed=1) == found[1:2]
    assert made.rephrase(queries, ["blue", "a circle", "2"], 3, seed=1)[1:] == found[1:]


def test_its_greedy_text_is_that_of_transformers(blip, queries):
    """Token by token with the model itself: the largest logit, until the end."""
    made = ImageToText.load(blip, decoding=Decoding(prompt="{question}", max_new_tokens=6))
    (found,) = made.sample(queries[:1], 2, np.zeros(2), seed=0)
    assert found.samples.texts == (found.samples.answer,) * 2
    inputs = made.prepare(queries[0])
    ids = inputs["input_ids"][:, :-1]  # BLIP drops the end of what it is told
    states = made.model.vision_model(inputs["pixel_values"]).last_hidden_state
    asked = ids.shape[1]
    with torch.inference_mode():
        for _ in range(6):
            out = made.model.text_decoder(ids, encoder_hidden_states=states)
            ids = torch.cat([ids, out.logits[:, -1:].argmax(dim=-1)], dim=1)
            if int(ids[0, -1]) == 2:
                break
    text = made.processor.decode(ids[0, asked:], skip_special_tokens=True)
    assert found.samples.answer == text.strip()


def test_a_model_that_chats_is_told_in_words(tmp_path, queries):
    made = by_generator(tiny.save("llava", tmp_path))
    assert isinstance(made.backend, HuggingFace)
    assert made.wording == ANOTHER
    assert by_generator("tiny:llava@3").backend.name == "tiny:llava@3"
    assert by_generator("tiny:llava", wording="{answer}!").wording == "{answer}!"


def test_a_query_it_cannot_take_is_an_error_of_that_query(blip, queries):
    made = ImageToText.load(blip)
    two = make_query(7, images=[*queries[0].images, *queries[1].images])
    good, bad = made.sample([queries[0], two], 1, np.ones(1), seed=0)
    assert good.error is None
    assert "takes one image; the query has 2" in bad.error
    with pytest.raises(InputError, match="same id"):
        list(made.sample([two, two], 1, np.ones(1), seed=0))


def test_a_generator_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"cannot load .* as a question generator"):
        by_generator(str(tmp_path))


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "nonsense", "meta"])
def test_a_device_that_is_not_here_is_refused_before_loading(device, tmp_path):
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match=rf"sample\.device is '{device}'"):
        need_device(device, "sample.device")
    # nothing is at the folder: the device comes first
    for load in (
        Towers.load, SentenceEncoder.load, NliModel.load, HuggingFace.load, ImageToText.load,
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"device is '{device}'"):
            load(str(tmp_path), device=device)


def test_a_device_map_needs_accelerate(tmp_path):
    with pytest.raises(MissingExtraError, match=r"accelerate.*fusevlm\[gpu\]"):
        HuggingFace.load(str(tmp_path), device_map="auto")


def test_devices_of_models_that_are_loaded():
    assert used_devices(make_config({}, "test")) | {"adapter.device": ""} == {
        "sample.device": "cpu", "embed.device": "cpu", "adapter.device": "",
    }  # fmt: skip
    for settings in ({"meanings": "nli"}, {"similarity": "sentences"}, {"rephrase": "generator"}):
        config = make_config({"semantics": {**settings, "device": "cuda"}}, "test")
        assert used_devices(config)["semantics.device"] == "cuda"
    with pytest.raises(InputError, match="give one of them"):
        make_config({"sample": {"device": "cuda", "device_map": "auto"}}, "test")
    with pytest.raises(InputError, match="must hold"):
        make_config({"semantics": {"wording": "ask"}}, "test")
