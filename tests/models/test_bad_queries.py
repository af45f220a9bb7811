"""Broken images, questions and models: the query's row carries the error, the others go on."""

import io
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from tests.models.conftest import make_picture, make_query
from tokenizers.processors import TemplateProcessing

from fusevlm.data import images
from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.layers import LayerTap
from fusevlm.models.protocol import Decoding
from fusevlm.models.temperatures import stratified
from fusevlm.testing import tiny
from fusevlm.types import Query

HEAT = stratified(4)


def jpeg(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def test_grey_palette_cmyk_and_transparent_images_become_rgb():
    base = make_picture(0)
    for mode in ("L", "P", "CMYK", "1", "LA", "RGBA", "YCbCr"):
        found = load_image(
            base.convert("RGB").convert(mode) if mode != "LA" else base.convert("LA")
        )
        assert (found.mode, found.size) == ("RGB", base.size)
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    assert load_image(clear).getpixel((0, 0)) == (255, 255, 255)
    deep = Image.fromarray(np.arange(0, 60000, 1000, dtype=np.uint16).reshape(6, 10))
    assert load_image(deep).convert("L").getextrema() == (0, 255)


def test_exif_rotation_is_applied():
    wide = Image.new("RGB", (40, 20), "white")
    ImageDraw.Draw(wide).rectangle([0, 0, 10, 10], fill="red")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90° to view
    found = load_image(jpeg(wide, exif=exif, quality=95))
    assert found.size == (20, 40)
    red = np.asarray(found.crop((12, 1, 18, 8))).mean(axis=(0, 1))
    assert red[0] > 200 > 100 > red[1]


def test_the_first_frame_of_an_animation_is_taken(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    path = tmp_path / "moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert load_image(path).getpixel((2, 2))[0] > 200


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "0 bytes"),
        (b"not an image at all", "is not a picture; expected one of PNG, JPEG"),
        (jpeg(make_picture(0, (200, 200)))[:900], "cannot be read"),
        ("nowhere.png", "does not exist"),
        (3.5, "cannot take a float"),
    ],
)
def test_unreadable_images_say_what_is_wrong(source, message):
    with pytest.raises(InputError, match=message):
        load_image(source)


def test_empty_files_and_folders_are_refused(tmp_path):
    empty = tmp_path / "empty.jpg"
    empty.write_bytes(b"")
    with pytest.raises(InputError, match="0 bytes"):
        load_image(empty)
    with pytest.raises(InputError, match="cannot be read"):
        load_image(tmp_path)


def test_huge_images_are_refused(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with pytest.raises(InputError, match="48×40 pixels"):
        load_image(make_picture(0))


def test_a_broken_query_does_not_stop_the_others(llava):
    queries = [
        make_query(0),
        make_query(1, images=["missing.png"]),
        make_query(2, question="   "),
        make_query(3, question="red " * 20_000),
        make_query(4),
    ]
    found = list(llava.sample(queries, 4, HEAT, seed=0))
    assert [g.query_id for g in found] == [q.id for q in queries]
    assert [g.error is None for g in found] == [True, False, False, False, True]
    assert "does not exist" in found[1].error
    assert "question is empty" in found[2].error
    assert "the model takes 16384" in found[3].error
    assert found[1].samples is None
    (alone,) = llava.sample([make_query(4)], 4, HEAT, seed=0)
    assert alone.token_ids == found[4].token_ids


def test_questions_without_images_and_with_history_work(llava):
    plain = make_query(5, images=[])
    talk = make_query(6, history=[("user", "what is this"), ("assistant", "a circle")])
    two = make_query(7, images=[make_picture(1), make_picture(2)])
    found = list(llava.sample([plain, talk, two], 4, HEAT, seed=0))
    assert [g.error for g in found] == [None] * 3
    assert found[1].prompt_tokens > found[0].prompt_tokens


def test_a_model_that_only_ends_is_an_error():
    model, processor = tiny.build("llava")
    with torch.no_grad():
        model.lm_head.bias[processor.tokenizer.eos_token_id] = 1e6
    backend = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=3))
    (found,) = backend.sample([make_query(0)], 4, HEAT, seed=0)
    assert "only end-of-sequence" in found.error


@pytest.mark.parametrize("path", ["auto", "repeated_cache"])
def test_nan_logits_fail_their_own_query_only(path, monkeypatch):
    model, processor = tiny.build("llava")
    backend = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=4, path=path))
    prefill = backend._prefill

    def poisoned(query, **alone):
        prompt = prefill(query, **alone)
        if query.id != "q1":
            return prompt
        return replace(prompt, logits=torch.full_like(prompt.logits, torch.nan))

    monkeypatch.setattr(backend, "_prefill", poisoned)
    found = list(backend.sample([make_query(i) for i in range(3)], 4, HEAT, seed=0))
    assert [g.error is None for g in found] == [True, False, True]
    assert "NaN or infinite logits at token 1" in found[1].error


def test_out_of_memory_together_is_tried_one_by_one(llava, monkeypatch, caplog):
    from fusevlm.models import huggingface

    decode = huggingface.decode

    def tight(model, prompts, temperatures, seed):
        if len(prompts) > 1 or prompts[0].query_id == "q2":
            raise torch.OutOfMemoryError("tried to allocate too much")
        return decode(model, prompts, temperatures, seed)

    monkeypatch.setattr(huggingface, "decode", tight)
    with caplog.at_level(logging.WARNING):
        found = list(llava.sample([make_query(i) for i in range(3)], 4, HEAT, seed=0))
    assert [g.error is None for g in found] == [True, True, False]
    assert "out of memory" in found[2].error
    assert "out of memory with 3 queries at a time: going on with 1" in caplog.text
    llava._most = None


def test_a_failure_together_is_tried_one_by_one(llava, monkeypatch):
    from fusevlm.models import huggingface

    decode = huggingface.decode

    def fragile(model, prompts, temperatures, seed):
        if any(prompt.query_id == "q2" for prompt in prompts):
            raise ValueError("cannot take q2")
        return decode(model, prompts, temperatures, seed)

    monkeypatch.setattr(huggingface, "decode", fragile)
    found = list(llava.sample([make_query(i) for i in range(3)], 4, HEAT, seed=0))
    assert [g.error for g in found] == [None, None, "ValueError: cannot take q2"]


def test_a_bug_is_not_a_query_error(llava, monkeypatch):
    def bug(query):
        raise AssertionError("never swallowed")

    monkeypatch.setattr(llava, "prepare", bug)
    with pytest.raises(AssertionError, match="never swallowed"):
        list(llava.sample([make_query(0)], 4, HEAT, seed=0))


def test_equal_ids_in_a_batch_are_refused(llava):
    with pytest.raises(InputError, match="same id"):
        list(llava.sample([make_query(0), make_query(0)], 4, HEAT, seed=0))


def test_sliding_windows_take_the_repeated_cache_and_say_so(caplog):
    """A window shorter than the prompt: the shared prefix would attend too far."""
    from transformers import AutoModelForImageTextToText, MistralConfig

    config, (processor, image) = tiny.llava()
    config.text_config = MistralConfig(**tiny.text_sizes(), sliding_window=8)
    processor.chat_template = tiny.CHAT.replace("IMAGE", image)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    with caplog.at_level(logging.WARNING):
        backend = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=4))
    assert "using the repeated cache" in caplog.text
    (found,) = backend.sample([make_query(0)], 4, HEAT, seed=0)
    assert (found.error, found.path) == (None, "repeated_cache")
    inputs = backend.prepare(make_query(0))
    length = inputs["input_ids"].shape[1]
    tokens = list(found.answer_token_ids)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([tokens])], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.inference_mode():
        plain = backend.model(**inputs).logits[0, length - 1 :].log_softmax(dim=-1)
    expected = [float(plain[t, token]) for t, token in enumerate(tokens)]
    np.testing.assert_allclose(found.samples.answer_logprobs[: len(tokens)], expected, atol=1e-4)


def test_a_template_with_its_own_bos_does_not_get_a_second_one():
    model, processor = tiny.build("llava")
    backend = HuggingFace(model, processor)
    bos = processor.tokenizer.bos_token_id
    adds_it = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    processor.tokenizer.backend_tokenizer.post_processor = adds_it
    plain = backend.prepare(make_query(0))["input_ids"][0].tolist()
    assert plain.count(bos) == 1  # this tokenizer's own
    processor.chat_template = "<s>" + processor.chat_template
    assert backend.prepare(make_query(0))["input_ids"][0].tolist() == plain


def test_stop_strings_end_an_answer_and_are_cut_off():
    model, processor = tiny.build("llava")
    free = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=8))
    (long,) = free.sample([make_query(0)], 4, HEAT, seed=0)
    word = next(t for t in long.samples.texts if len(t.split()) > 2).split()[1]
    stopped = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=8, stop=(word,)))
    (found,) = stopped.sample([make_query(0)], 4, HEAT, seed=0)
    for before, after, cut in zip(
        long.samples.texts, found.samples.texts, found.truncated, strict=True
    ):
        assert after == before.split(word)[0].strip()
        assert not (cut and word in before)


def test_layers_are_named_or_numbered(llava):
    decoder = llava.decoder
    assert LayerTap(decoder, ["last", 1, -1]).names == ["last", "1", "-1"]
    for bad in (0, 4, -5, "first"):
        with pytest.raises(InputError, match="layer"):
            LayerTap(decoder, [bad])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "no slot"}, "must hold"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"answer_temperature": -1.0}, "answer_temperature"),
        ({"layers": ()}, "layers is empty"),
        ({"path": "fast"}, "path is 'fast'"),
    ],
)
def test_decoding_settings_are_checked(changes, message):
    with pytest.raises(InputError, match=message):
        Decoding(**changes)


def test_queries_are_checked():
    with pytest.raises(InputError, match="non-empty string"):
        Query("", "what")
    with pytest.raises(InputError, match="question must be a string"):
        Query("a", None)
    with pytest.raises(InputError, match="role 'user' or 'assistant'"):
        Query("a", "what", history=[("system", "be nice")])


def test_unloadable_models_are_named(tmp_path):
    with pytest.raises(InputError, match="cannot load"):
        HuggingFace.load(str(tmp_path))
