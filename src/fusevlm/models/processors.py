"""Processors without torchvision: PIL image processors, and no video where none is needed."""

from __future__ import annotations

from typing import Any


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
