"""Tiny random inference models, built offline."""

import warnings

import torch
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification

from fusevlm.semantics.inference import NliModel
from fusevlm.testing import tiny

with warnings.catch_warnings():  # transformers' own DeBERTa calls torch.jit.script
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    from transformers import (
        DebertaConfig,
        DebertaForSequenceClassification,
        DebertaV2Config,
        DebertaV2ForSequenceClassification,
    )

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": len(tiny.VOCABULARY), "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
LABELS = {0: "ENTAILMENT", 1: "CONTRADICTION", 2: "NEUTRAL"}  # neither ours nor MNLI's usual order
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
KINDS = {
    "bert": (BertConfig, BertForSequenceClassification, {}),
    "deberta": (DebertaConfig, DebertaForSequenceClassification, RELATIVE),
    "deberta_v2": (DebertaV2Config, DebertaV2ForSequenceClassification, RELATIVE),
}


def words():
    """A word tokenizer that writes pairs as ``<s> premise </s> hypothesis </s>``."""
    made = tiny.tokenizer()
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )  # fmt: skip
    return made


PROBES = [
    [f"what colour is the shape {a}", f"what colour is the shape {b}"]
    for a in ("red", "blue", "a red circle", "green", "yes", "1")
    for b in ("red", "the blue shape", "3")
]


def build(kind, seed=0):
    """Random weights, made to take sides: logits with mean 0 and spread 2 over a few pairs.

    In float64, since the stretch would show float32's rounding.
    """
    config_class, model_class, changes = KINDS[kind]
    torch.manual_seed(seed)
    model = (
        model_class(config_class(**SIZES, **changes, id2label=LABELS, num_labels=3)).double().eval()
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(5.0 if name.endswith("weight") and weight.ndim == 2 else 1.0)
        logits = model(**words()(PROBES, padding=True, return_tensors="pt")).logits
        stretch = 2.0 / logits.std(dim=0)
        model.classifier.weight.mul_(stretch[:, None])
        model.classifier.bias.copy_((model.classifier.bias - logits.mean(dim=0)) * stretch)
    return NliModel(model, words(), batch=8)
