"""The embedded models' shapes: one word tokenizer, a CLIP-shaped and two LLaVA-shaped models.

Everything is built offline from a config, and a saved folder loads like one from the hub.
"""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from fusevlm import store
from fusevlm.data.pictures import SIDE
from fusevlm.data.questions import KINDS
from fusevlm.data.scenes import COLORS, SHAPES
from fusevlm.models.processors import name_as_hub
from fusevlm.models.protocol import SHORT_ANSWER

PATCH = 8
N_IMAGE_TOKENS = (SIDE // PATCH) ** 2 + 1  # the class token too: it is what contrast has taught
WIDTH = 128  # of both towers and of the embedding
TEXT_LIMIT = 32
DECODER_WIDTH, HEADS = 160, 5  # heads of 32: vLLM on a CPU takes no 40
DECODER_START = 0.07  # about 1/sqrt(width); Llama's 0.02 is for wide models and starts slowly here
PATCH_START, POSITION_START = 3.0, 0.6  # the vision tower's start, see dual_encoder
FREQUENCIES = 4
MEAN, STD = 0.9, 0.25  # of the training pictures, roughly: the background is near 0
ASK = "answer: {question}"  # the question generator's prompt: an answer in, a question out
INSTRUCTION = SHORT_ANSWER.removeprefix("{question}")  # one token: it says the same every time
# EOS must not be 2: CLIP then takes the largest id for the end of the text (an old config's bug)
SPECIAL = ("<pad>", "<s>", "<unk>", "</s>", "<image>", "<user>", "<assistant>")
PAD, BOS, UNK, EOS, IMAGE, USER, ASSISTANT = range(len(SPECIAL))
SPACE = "\u2581"
CHAT = (
    "<s>{% for m in messages %}{{ '<user>' if m['role'] == 'user' else '<assistant>' }}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}"
    "{% endif %}{% endfor %}{{ '</s>' if m['role'] == 'assistant' else '' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PACKAGE_WORDS = (
    "a an color contain does image in is it no not of present shape the there what yes"  # easy-vqa
)
CAPTION_WORDS = "at bottom center is large left medium picture right small top answer : . , ?"


def vocabulary() -> dict[str, int]:
    """Special tokens, digits, and every word of the questions, answers and captions."""
    text = " ".join(q for kind in KINDS.values() for q in (*kind.seen, *kind.unseen))
    text = " ".join((text, PACKAGE_WORDS, CAPTION_WORDS, *COLORS, *SHAPES))
    pieces = sorted(set(re.findall(r"[a-z]+|[^\sa-z]", text)))
    words = [SPACE + p for p in pieces if p.isalpha()]
    marks = [p for p in pieces if not p.isalpha() and not p.isdigit()]
    tokens = [*SPECIAL, SPACE, *"0123456789", *marks, *words]
    return {token: i for i, token in enumerate(tokens)}


@cache
def tokenizer() -> Any:
    """Whole words, digits one by one; decoding gives the text back."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as pre
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    inner = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " ")]
    )
    inner.pre_tokenizer = pre.Sequence(
        [pre.Metaspace(SPACE), pre.Punctuation("isolated"), pre.Digits(individual_digits=True)]
    )
    inner.decoder = decoders.Metaspace(SPACE)
    inner.add_special_tokens(list(SPECIAL))
    inner.add_tokens([AddedToken(INSTRUCTION, normalized=False)])
    return fast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", clean_up_tokenization_spaces=False, model_max_length=TEXT_LIMIT * 8,
    )  # fmt: skip


def encode(text: str) -> list[int]:
    """Token ids of a text, nothing added."""
    ids: list[int] = tokenizer()(text, add_special_tokens=False)["input_ids"]
    return ids


def _vision() -> dict[str, Any]:
    return {
        "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 4,
        "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH,
        "projection_dim": WIDTH,
    }  # fmt: skip


def dual_encoder(seed: int) -> Any:
    """An untrained CLIPModel, D = 128, patch 8 on 64×64."""
    from transformers import CLIPConfig, CLIPModel

    text = {
        "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 3,
        "num_attention_heads": 4, "vocab_size": len(tokenizer()), "projection_dim": WIDTH,
        "max_position_embeddings": TEXT_LIMIT, "pad_token_id": PAD, "bos_token_id": BOS,
        "eos_token_id": EOS,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=_vision(), projection_dim=WIDTH))
    with torch.no_grad():
        # CLIP's start is for wide models and long training: here a patch would drown out where it
        # is, and that neighbours are near would have to be learnt
        start = model.vision_model.embeddings
        start.patch_embedding.weight.mul_(PATCH_START)
        start.position_embedding.weight[1:] = POSITION_START * _places()
    return model


def _places() -> Tensor:
    """Random mixtures of sines and cosines of row and column, of unit variance [patches, width]."""
    rows = SIDE // PATCH
    place = (torch.arange(rows) + 0.5) / rows * torch.pi / 2
    y, x = torch.meshgrid(place, place, indexing="ij")
    angles = torch.stack([y, x], dim=-1).reshape(-1, 2, 1) * torch.arange(1, FREQUENCIES + 1)
    waves = torch.cat([angles.cos(), angles.sin()], dim=-1).flatten(1)
    mixed: Tensor = waves @ torch.randn(waves.shape[1], WIDTH)
    unit: Tensor = mixed * (2.0 / waves.shape[1]) ** 0.5
    return unit


def language_model(seed: int, tower: Any = None) -> Any:
    """An untrained LLaVA, Llama 160×3; it starts from a copy of the vision ``tower`` if given."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    text = {
        "model_type": "llama", "hidden_size": DECODER_WIDTH, "intermediate_size": 432,
        "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
        "vocab_size": len(tokenizer()), "max_position_embeddings": 512, "pad_token_id": PAD,
        "bos_token_id": BOS, "eos_token_id": EOS, "tie_word_embeddings": False,
        "initializer_range": DECODER_START,
    }  # fmt: skip
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **_vision()}, text_config=text,
        image_token_index=IMAGE, image_seq_length=N_IMAGE_TOKENS, vision_feature_layer=-1,
        vision_feature_select_strategy="full", tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = PAD
    if tower is not None:
        model.model.vision_tower.load_state_dict(tower.state_dict())
    return model


def image_processor() -> Any:
    """64×64, standardised; PIL, so that torchvision is not needed."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE},
        image_mean=[MEAN] * 3, image_std=[STD] * 3,
    )  # fmt: skip


@cache
def towers_processor() -> Any:
    """The dual encoder's processor; texts end with the token whose state is the text's."""
    from tokenizers.processors import TemplateProcessing
    from transformers import CLIPProcessor

    processor: Any = CLIPProcessor
    words = copy.deepcopy(tokenizer())
    words.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return processor(image_processor(), words)


def answer_processor() -> Any:
    """The processor of both LLaVA-shaped models."""
    from transformers import LlavaProcessor

    processor: Any = LlavaProcessor
    return processor(
        image_processor(), tokenizer(), patch_size=PATCH, chat_template=CHAT,
        vision_feature_select_strategy="full", num_additional_image_tokens=1,
    )  # fmt: skip


def as_tensor(pixels: npt.NDArray[Any]) -> Tensor:
    """uint8 pictures [N, 64, 64, 3] as the processor would give them, [N, 3, 64, 64]."""
    tensor = torch.tensor(pixels).permute(0, 3, 1, 2).float()
    return (tensor / 255.0 - MEAN) / STD


def save_half(model: Any, processor: Any, folder: Path) -> None:
    """Weights in half precision, config and processor, as a folder that loads like the hub's.

    The config asks for float32, in which the half-precision weights are computed with.
    """
    copy.deepcopy(model).half().save_pretrained(folder)
    name_as_hub(folder / "model.safetensors")
    processor.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    text = json.dumps(_in_float32(config), indent=2) + "\n"
    store.write_atomically(folder / "config.json", text.encode())


def _in_float32(facts: dict[str, Any]) -> dict[str, Any]:
    """The config with every ``dtype`` in it, also of its parts, set to float32."""
    return {
        key: "float32" if key == "dtype" else _in_float32(v) if isinstance(v, dict) else v
        for key, v in facts.items()
    }


def load(folder: Path) -> Any:
    """A saved model in float32, in evaluation mode."""
    from transformers import AutoModel, AutoModelForImageTextToText

    kind = json.loads((folder / "config.json").read_text())["model_type"]
    loader: Any = AutoModel if kind == "clip" else AutoModelForImageTextToText
    return loader.from_pretrained(folder, dtype=torch.float32).eval()
