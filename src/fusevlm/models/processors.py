"""Model files as they come: processors without torchvision, and weights named as on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusevlm import store


def without_video(processor_class: type) -> type:
    """The processor class with ``video_processor=None`` allowed.

    transformers' video processors need torchvision, which is never installed here; images alone do
    not need them.
    """

    def check(self: Any, name: str, argument: Any) -> Any:
        if argument is None and "video" in name:
            return None
        return processor_class.check_argument_for_proper_class(self, name, argument)  # type: ignore[attr-defined]

    return type(
        processor_class.__name__, (processor_class,), {"check_argument_for_proper_class": check}
    )


def load_processor(source: str, **options: Any) -> Any:
    """The processor of a model folder or hub name, with PIL images and without video if need be."""
    from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

    try:
        loader: Any = AutoProcessor
        return loader.from_pretrained(source, backend="pil", **options)
    except ImportError as error:
        if "orchvision" not in str(error) and "ideo processor" not in str(error):
            raise
    from transformers.models.auto.processing_auto import processor_class_from_name
    from transformers.processing_utils import ProcessorMixin

    facts, _ = ProcessorMixin.get_processor_dict(source, **options)
    cls = without_video(processor_class_from_name(facts["processor_class"]))
    pictures: Any = AutoImageProcessor
    parts = {
        "image_processor": pictures.from_pretrained(source, backend="pil", **options),
        "tokenizer": AutoTokenizer.from_pretrained(source, **options),
        "video_processor": None,
    }
    return cls.from_args_and_dict([parts[name] for name in cls.get_attributes()], facts)  # type: ignore[attr-defined]


def name_as_hub(path: Path) -> None:
    """Name a LLaVA's tower ``vision_tower.vision_model.*`` as the hub's checkpoints do.

    transformers 5 writes the short names and reads both; vLLM reads the long ones only.
    """
    from safetensors.torch import load, save

    short, long = "vision_tower.", "vision_tower.vision_model."
    weights = load(path.read_bytes())
    named = {
        k.replace(short, long, 1) if k.startswith(short) and not k.startswith(long) else k: v
        for k, v in weights.items()
    }
    if named.keys() != weights.keys():
        store.save(path, save(named, metadata={"format": "pt"}))
