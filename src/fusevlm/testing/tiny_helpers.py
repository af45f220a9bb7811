"""Tiny random models of the other kinds that a run loads: inference, sentences, questions.

Built offline like :mod:`fusevlm.testing.tiny`, with its words, and saved as a hub snapshot has it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing

from fusevlm import checks, store
from fusevlm.testing.tiny import VISION, VOCABULARY, hf, tokenizer

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": len(VOCABULARY), "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
LABELS = {0: "ENTAILMENT", 1: "CONTRADICTION", 2: "NEUTRAL"}  # neither ours nor MNLI's usual order
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
INFERENCE: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "deberta": ("Deberta", RELATIVE),
    "deberta_v2": ("DebertaV2", RELATIVE),
}
PROBES = [
    [f"what colour is the shape {a}", f"what colour is the shape {b}"]
    for a in ("red", "blue", "a red circle", "green", "yes", "1")
    for b in ("red", "the blue shape", "3")
]


def framed_tokenizer() -> Any:
    """A word tokenizer that writes pairs as ``<s> premise </s> hypothesis </s>``."""
    made = tokenizer()
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )  # fmt: skip
    return made


def build_inference(kind: str, seed: int = 0) -> tuple[Any, Any]:
    """A model for inference and its tokenizer: random weights, made to take sides.

    Its logits have mean 0 and spread 2 over a few pairs; in float64, since the stretch would show
    float32's rounding.
    """
    stem, changes = INFERENCE[checks.known(kind, INFERENCE, "the tiny inference model")]
    words = framed_tokenizer()
    torch.manual_seed(seed)
    with warnings.catch_warnings():  # transformers' own DeBERTa calls torch.jit.script
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        config = getattr(hf, f"{stem}Config")(**{**SIZES, **changes}, id2label=LABELS, num_labels=3)
        model = getattr(hf, f"{stem}ForSequenceClassification")(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(5.0 if name.endswith("weight") and weight.ndim == 2 else 1.0)
        logits = model(**words(PROBES, padding=True, return_tensors="pt")).logits
        stretch = 2.0 / logits.std(dim=0)
        model.classifier.weight.mul_(stretch[:, None])
        model.classifier.bias.copy_((model.classifier.bias - logits.mean(dim=0)) * stretch)
    return model, words


def save_inference(kind: str, folder: str | Path) -> str:
    """A folder for ``semantics.nli``."""
    model, words = build_inference(kind)
    model.float().save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def save_encoder(folder: str | Path) -> str:
    """A folder for ``semantics.encoder``: a sentence encoder with mean pooling."""
    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(**SIZES)).save_pretrained(folder)
    framed_tokenizer().save_pretrained(folder)
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    store.save_json(Path(folder) / "1_Pooling" / "config.json", pooling)
    return str(folder)


def save_blip(folder: str | Path) -> str:
    """A folder for ``semantics.generator``: a BLIP, which knows no chat."""
    torch.manual_seed(0)
    text = {**SIZES, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2, "pad_token_id": 0,
            "encoder_hidden_size": VISION["hidden_size"], "projection_dim": 16}  # fmt: skip
    config = hf.BlipConfig(text_config=text, vision_config=VISION, projection_dim=16)
    model = hf.BlipForConditionalGeneration(config).eval()
    with torch.no_grad():  # sharper heads end and repeat; see tiny.build
        head = model.text_decoder.cls.predictions.decoder
        head.weight.mul_(8.0)
        head.bias[: VOCABULARY["\n"]] = -1e4
        head.bias[VOCABULARY["</s>"]] = 0.0
    model.save_pretrained(folder)
    images = hf.BlipImageProcessorPil(size={"height": 32, "width": 32})
    hf.BlipProcessor(images, framed_tokenizer()).save_pretrained(folder)
    return str(folder)
