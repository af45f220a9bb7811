"""Where models come from: a folder, a hub name, or the embedded ones."""

from __future__ import annotations

from pathlib import Path

from fusevlm import checks
from fusevlm.config import EMBEDDED
from fusevlm.errors import ArtefactError


def model_folder(source: str, part: str) -> str:
    """``source`` itself, or where the embedded ``part`` (vlm, dual_encoder, adapter …) lies."""
    if source != EMBEDDED:
        return source
    from fusevlm.embedded import weights_folder

    folder = Path(weights_folder()) / part
    if not folder.is_dir():
        raise ArtefactError(
            f"the embedded {part} is not at {folder}. Install fusevlm with its weights, or make "
            f"them in a clone (make embedded) and name their folder in FUSEVLM_EMBEDDED."
        )
    return str(folder)


def local_input(name: str, source: str, part: str) -> dict[str, Path]:
    """The folder to watch for changes; a hub name has none."""
    folder = Path(model_folder(source, part))
    return {name: folder} if folder.exists() else {}


def need_models(what: str) -> None:
    """Make sure models can be loaded, and keep transformers' own progress bars away."""
    checks.extra("torch", what, "torch")
    checks.extra("transformers", what, "torch").logging.disable_progress_bar()
