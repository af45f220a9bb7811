"""Could the models that a config names be loaded? Looked at from outside, within seconds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fusevlm import checks
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import FuseError, InputError
from fusevlm.models.registry import (
    HUGGINGFACE,
    check_registered,
    config_number,
    model_folder,
    split_source,
)
from fusevlm.pipeline.cost import cached, model_need, model_sources
from fusevlm.priors.gp.pairs import MANIFEST
from fusevlm.settings import MINILM, NONE, Config
from fusevlm.store import read_json

PATIENCE = 4.0  # seconds for the hub
WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
WORDS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "*.spm", "*.bpe.model",
         "spiece.model", "merges.txt")  # fmt: skip
VLM, TOWERS, INFERENCE = "sample.model", "embed.towers", "semantics.nli"
RELATIONS = ["contradiction", "entailment", "neutral"]
IS_IT = "Is this a model's folder?"


def place_of(key: str, source: str, part: str) -> str:
    """Where a model is, in words; one that can be none, or is not whole, is an error."""
    if source == EMBEDDED and part:
        return f"embedded ({Path(model_folder(source, part)).name})"
    need = model_need(key, source, part)
    if os.path.isdir(source):
        _need_whole(key, Path(source), part)
        return f"folder {source}"
    if need.note == "a registered model":
        check_registered(*split_source(source))
        return f"{source}, a registered model"
    if source == MINILM:
        return "minilm, from its package"
    note = f" ({need.note})" if need.note else ""
    return f"{source} from the hub{', in its cache' if need.there else ''}{note}"


def _need_whole(key: str, folder: Path, part: str) -> None:
    """Refuse a folder that lacks what a model is loaded from, or is another kind of model."""
    if part == "adapter":
        if not (folder / MANIFEST).is_file():
            raise InputError(f"{key} is {str(folder)!r}, which holds no adapter ({MANIFEST}).")
        return
    for what, names in (("weights", WEIGHTS), ("tokenizer", WORDS)):
        if not any(path for name in names for path in folder.glob(name)):
            raise InputError(f"{key} is {str(folder)!r}, a folder without {what}.")
    facts = read_json(folder / "config.json", IS_IT)
    if key == INFERENCE:
        named = facts.get("id2label")
        found = sorted(str(v).lower() for v in named.values()) if isinstance(named, dict) else []
        if found != RELATIONS:
            raise InputError(
                f"{key} is {str(folder)!r}, whose classes are {', '.join(found) or 'not named'}; "
                f"expected {', '.join(RELATIONS)}. Take a model trained on MNLI."
            )
    if key in (VLM, TOWERS):
        _need_kind(key, str(folder), str(facts.get("model_type")))


def _need_kind(key: str, folder: str, kind: str) -> None:
    """Refuse towers in the place of a model that answers, and such a model in their place."""
    try:
        from transformers.models.auto import modeling_auto as auto
    except ImportError:  # which is said elsewhere
        return
    answers = {
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    towers = set(auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES)
    if key == VLM and kind not in answers:
        raise InputError(
            f"{key} is {folder!r}, a model of the type {kind!r}, which answers no questions. Name "
            f"an image-text-to-text model, or a language model."
        )
    if key == TOWERS and kind in answers - towers:
        raise InputError(
            f"{key} is {folder!r}, a model of the type {kind!r}, which is no pair of towers. Name "
            f"one such as CLIP or SigLIP."
        )


def need_layers(config: Config) -> None:
    """Refuse names of layers that the model cannot have."""
    if split_source(config.sample.model)[0] == "openai":
        return
    path = Path(model_folder(split_source(config.sample.model)[1], "vlm")) / "config.json"
    facts = read_json(path, IS_IT) if os.path.isfile(path) else {}
    depth = config_number(facts, "text_config", "num_hidden_layers")
    depth = depth or config_number(facts, "num_hidden_layers")
    for layer in config.sample.layers:
        number = abs(int(layer)) if re.fullmatch(r"-?\d{1,9}", layer) else None
        if number is None and layer not in ("last", "middle"):
            raise InputError(f"sample.layers: {layer!r}; expected 'last', 'middle' or a number.")
        if number is not None and depth is not None and not 1 <= number <= depth:
            raise InputError(f"sample.layers: {layer!r}; the model has layers 1 to {depth}.")


def unreachable(config: Config, keys: Iterable[str]) -> list[str]:
    """Hub names that can neither be found here nor asked for there; all are asked at once."""
    asked = {key: source for key, (source, _) in model_sources(config).items() if key in keys}
    left = {key: source for key, source in asked.items() if _is_far(source)}
    with ThreadPoolExecutor(max(1, len(left))) as pool:
        return [why for why in pool.map(_not_there, left.items()) if why]


def _is_far(source: str) -> bool:
    """Whether it would have to come from the hub."""
    name, source = split_source(source)
    local = os.path.exists(source) or source in (EMBEDDED, MINILM, NONE)
    return not local and name == HUGGINGFACE and not cached(source)


def _not_there(named: tuple[str, str]) -> str:
    """Why a hub name cannot be had; "" if it can."""
    key, source = named
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return (
            f"{key} is {source!r}, which is not in the hub's cache on this machine, and "
            f"HF_HUB_OFFLINE is set. Download it first, or name a folder."
        )
    try:
        hub = checks.extra("huggingface_hub", f"{key} = {source!r}", "torch")
        hub.HfApi().model_info(source, timeout=PATIENCE)
    except FuseError as error:
        return str(error)
    except Exception as error:  # of the network, of the hub, of its client
        said = str(error).strip().split("\n")[0] or type(error).__name__
        return (
            f"{key} is {source!r}, which cannot be had from the hub: {said} Correct the name, "
            f"download it where there is a network, or name a folder."
        )
    return ""
