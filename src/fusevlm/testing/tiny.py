"""Tiny random models of each family, built offline from a config, with their real processors.

Nothing is learnt and nothing is downloaded: weights are random, the tokenizer knows a few words.
``tiny:llava`` names one wherever a model is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from fusevlm import checks, store
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.processors import name_as_hub, without_video
from fusevlm.models.protocol import Decoding

hf: Any = transformers  # its stubs know little of what its configs take

WORDS = [
    "what", "colour", "is", "the", "shape", "in", "this", "image", "a", "red", "blue", "green",
    "circle", "square", "yes", "no", "how", "many", "user:", "assistant:", "1", "2", "3",
]  # fmt: skip
SPECIAL = [
    "<pad>", "<s>", "</s>", "<unk>", "<image>", "<video>", "<fake_token_around_image>",
    "<global-img>", "<end_of_utterance>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>",
    "<|vision_end|>", "<img>", "</img>", "<IMG_CONTEXT>",
]  # fmt: skip
CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE {% else %}{{ c['text'] }} {% endif %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
VOCABULARY = {word: i for i, word in enumerate([*SPECIAL, "\n", *WORDS])}


def tokenizer(**special: str) -> Any:
    """A tokenizer of whole words: those of :data:`WORDS`, and ``<unk>``."""
    inner = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(SPECIAL)
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", extra_special_tokens=special,
    )  # fmt: skip


def text_sizes(**changes: Any) -> dict[str, Any]:
    """The sizes of a text decoder of three layers, some of them changed."""
    return {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(VOCABULARY),
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 16384,
        **changes,
    }  # fmt: skip


VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
SQUARE = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
PINPOINTS = [[32, 64], [64, 32]]


def llava(**text: Any) -> tuple[Any, Any]:
    """LLaVA 1.5; of every family: its config, its processor and what stands for an image."""
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=hf.LlamaConfig(**text_sizes(**text)),
        image_token_index=VOCABULARY["<image>"], vision_feature_layer=-1,
    )  # fmt: skip
    processor = hf.LlavaProcessor(
        hf.CLIPImageProcessorPil(**SQUARE), tokenizer(), patch_size=8,
        vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip
    return config, (processor, "<image>")


def llava_next(**text: Any) -> tuple[Any, Any]:
    """LLaVA-NeXT."""
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=hf.LlamaConfig(**text_sizes(**text)), image_grid_pinpoints=PINPOINTS,
        image_token_index=VOCABULARY["<image>"], vision_feature_layer=-1,
    )  # fmt: skip
    processor = hf.LlavaNextProcessor(
        hf.LlavaNextImageProcessorPil(**SQUARE, image_grid_pinpoints=PINPOINTS), tokenizer(),
        patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip
    return config, (processor, "<image>")


def _mrope(text: Any) -> dict[str, Any]:
    """Rotary sections for time, height and width that fill half a head."""
    sizes = text_sizes(**text)
    half = sizes["hidden_size"] // sizes["num_attention_heads"] // 2
    section = [half // 4, half * 3 // 8, half - half // 4 - half * 3 // 8]
    return {"rope_type": "default", "mrope_section": section, "rope_theta": 10000.0}


def _qwen(config_class: Any, processor_class: Any, vision: Any, text: Any) -> tuple[Any, Any]:
    config = config_class(
        text_config=text_sizes(rope_parameters=_mrope(text), **text),
        vision_config={
            "depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2,
            "temporal_patch_size": 2, **vision,
        },
        image_token_id=VOCABULARY["<|image_pad|>"], video_token_id=VOCABULARY["<|video_pad|>"],
        vision_start_token_id=VOCABULARY["<|vision_start|>"],
        vision_end_token_id=VOCABULARY["<|vision_end|>"],
    )  # fmt: skip
    images = hf.Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2, min_pixels=32 * 32, max_pixels=64 * 64
    )
    processor = without_video(processor_class)(images, tokenizer(), None)
    return config, (processor, "<|vision_start|><|image_pad|><|vision_end|>")


def qwen2_vl(**text: Any) -> tuple[Any, Any]:
    """Qwen2-VL."""
    vision = {"embed_dim": 32, "hidden_size": text.get("hidden_size", 64), "mlp_ratio": 2}
    return _qwen(hf.Qwen2VLConfig, hf.Qwen2VLProcessor, vision, text)


def qwen2_5_vl(**text: Any) -> tuple[Any, Any]:
    """Qwen2.5-VL."""
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": text.get("hidden_size", 64),
        "window_size": 32, "fullatt_block_indexes": [1],
    }  # fmt: skip
    return _qwen(hf.Qwen2_5_VLConfig, hf.Qwen2_5_VLProcessor, vision, text)


def idefics3(**text: Any) -> tuple[Any, Any]:
    """Idefics3."""
    config = hf.Idefics3Config(
        vision_config=VISION, text_config=hf.LlamaConfig(**text_sizes(**text)),
        image_token_id=VOCABULARY["<image>"], scale_factor=2,
    )  # fmt: skip
    images = hf.Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    return config, (hf.Idefics3Processor(images, tokenizer(), image_seq_len=4), "<image>")


def smolvlm(**text: Any) -> tuple[Any, Any]:
    """SmolVLM."""
    config = hf.SmolVLMConfig(
        vision_config=VISION, text_config=hf.LlamaConfig(**text_sizes(**text)),
        image_token_id=VOCABULARY["<image>"], scale_factor=2,
    )  # fmt: skip
    images = hf.SmolVLMImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    processor = without_video(hf.SmolVLMProcessor)(images, tokenizer(), None, image_seq_len=4)
    return config, (processor, "<image>")


def paligemma(**text: Any) -> tuple[Any, Any]:
    """PaliGemma."""
    width = text.get("hidden_size", 64)
    config = hf.PaliGemmaConfig(
        vision_config={**VISION, "model_type": "siglip_vision_model", "projection_dim": width},
        text_config=hf.GemmaConfig(**text_sizes(**{"head_dim": 16, **text})),
        image_token_index=VOCABULARY["<image>"], projection_dim=width,
    )  # fmt: skip
    images = hf.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    return config, (hf.PaliGemmaProcessor(images, tokenizer()), "<image>")


def internvl(**text: Any) -> tuple[Any, Any]:
    """InternVL."""
    config = hf.InternVLConfig(
        vision_config={**VISION, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config=hf.Qwen2Config(**text_sizes(**text)),
        image_token_id=VOCABULARY["<IMG_CONTEXT>"], downsample_ratio=0.5,
    )  # fmt: skip
    words = tokenizer(
        start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )  # fmt: skip
    images = hf.GotOcr2ImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=2
    )
    processor = without_video(hf.InternVLProcessor)(images, words, None, image_seq_length=4)
    return config, (processor, "<IMG_CONTEXT>")


def llama(**text: Any) -> tuple[Any, Any]:
    """Llama, a language model: its tokenizer stands for a processor."""
    return hf.LlamaConfig(**text_sizes(**text)), (tokenizer(), "")


def qwen2(**text: Any) -> tuple[Any, Any]:
    """Qwen2, a language model."""
    return hf.Qwen2Config(**text_sizes(**text)), (tokenizer(), "")


LANGUAGE: dict[str, Callable[..., tuple[Any, Any]]] = {"llama": llama, "qwen2": qwen2}
FAMILIES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "llava": llava,
    "llava_next": llava_next,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "paligemma": paligemma,
    "internvl": internvl,
}


def build(
    family: str, *, seed: int = 0, sharp: float = 8.0, end: float = 0.0, **text: Any
) -> tuple[Any, Any]:
    """A random model of the family in evaluation mode, and its processor with a chat template.

    Random heads are almost uniform; ``sharp`` ones give answers that end and repeat. ``end`` is
    added to the logit of the end of an answer: below 0, fewer answers are empty.
    """
    config, (processor, image) = {**FAMILIES, **LANGUAGE}[family](**text)
    spoken = family in LANGUAGE
    processor.chat_template = PLAIN if spoken else CHAT.replace("IMAGE", image)
    torch.manual_seed(seed)
    kind = hf.AutoModelForCausalLM if spoken else hf.AutoModelForImageTextToText
    model = kind.from_config(config).eval()
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    with torch.no_grad():
        model.lm_head.weight.mul_(1.0 if tied else sharp)
        # an image placeholder in an answer would be taken for an image when it is fed back
        bias = torch.zeros(len(model.lm_head.weight))
        bias[[VOCABULARY[word] for word in SPECIAL if word != "</s>"]] = -1e4
        bias[VOCABULARY["</s>"]] = end
        model.lm_head.bias = torch.nn.Parameter(bias)
    return model, processor


def check_source(source: str) -> None:
    """Refuse a source that is no family, or FAMILY@SEED."""
    name, at, number = source.partition("@")
    checks.known(name, [*FAMILIES, *LANGUAGE], "the tiny model")
    if at:
        checks.count(number, f"the seed of tiny:{source}", least=0)


def load(source: str, *, decoding: Decoding, seed: int = 0) -> HuggingFace:
    """The model registered as ``tiny``: ``source`` is a family, or FAMILY@SEED.

    With a seed it seldom says nothing, and its samples often agree.
    """
    check_source(source)
    family, at, number = source.partition("@")
    changes = {"sharp": 32.0, "end": -6.0} if at else {}
    built = build(family, seed=int(float(number)) if at else seed, **changes)
    return HuggingFace(*built, decoding=decoding, name=f"tiny:{source}")


def save(family: str, folder: str | Path, *, end: float = 0.0, **text: Any) -> str:
    """A model folder as a hub snapshot has it: weights, tokenizer, image and video processor.

    ``end`` is a weight on the end of an answer: below 0, fewer answers are empty.
    """
    folder = Path(folder)
    model, processor = build(family, **text)
    model.lm_head.bias = None  # not part of the architecture's files
    _weigh(model, {VOCABULARY[word]: end if word == "</s>" else -1e3 for word in SPECIAL})
    model.save_pretrained(folder)
    if family == "llava":
        name_as_hub(folder / "model.safetensors")
    if getattr(processor, "video_processor", 0) is not None:
        processor.save_pretrained(folder)
        return str(folder)
    processor.tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    name = type(processor).__name__
    facts = {"processor_class": name} | {
        key: getattr(processor, key)
        for key in ("image_seq_len", "image_seq_length")
        if hasattr(processor, key)
    }
    kind = {"qwen2_5_vl": "Qwen2VLVideoProcessor"}  # which has its predecessor's
    named = kind.get(family, name.replace("Processor", "VideoProcessor"))
    video = {"video_processor_type": named}
    for file, content in (
        ("processor_config.json", facts),
        ("video_preprocessor_config.json", video),
    ):
        store.save_json(folder / file, content)
    store.save(folder / "chat_template.jinja", processor.chat_template.encode())
    return str(folder)


def _weigh(model: Any, tokens: Mapping[int, float]) -> None:
    """Make tokens likelier or not: one feature is always on and weighs them.

    Where input and output share their weights nothing is done.
    """
    head, words = model.lm_head.weight, model.get_input_embeddings().weight
    if head is words:
        return
    with torch.no_grad():
        words[:, 0] = 4.0
        for layer in model.get_decoder().layers:
            for added in (layer.self_attn.o_proj, layer.mlp.down_proj):
                added.weight[0] = 0.0
        head[:, 0] = 0.0
        head[list(tokens), 0] = torch.tensor(list(tokens.values()))


def save_towers(folder: str | Path) -> str:
    """A tiny random CLIP with its processor; texts beyond 8 tokens are cut."""
    torch.manual_seed(0)
    text = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": len(VOCABULARY), "max_position_embeddings": 8,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    config = hf.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)
    hf.CLIPModel(config).save_pretrained(folder)
    hf.CLIPProcessor(hf.CLIPImageProcessorPil(**SQUARE), tokenizer()).save_pretrained(folder)
    return str(folder)
