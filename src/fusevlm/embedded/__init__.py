"""The weights that come with the package (a VLM, towers, an adapter, a fit): where they lie."""

from __future__ import annotations

import os
from pathlib import Path

EMBEDDED = "embedded"  # what configs and the command line call them
VARIABLE = "FUSEVLM_EMBEDDED"


def weights_folder() -> Path:
    """Where the embedded models lie: the folder that ``FUSEVLM_EMBEDDED`` names, or our own."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(__file__).parent / "weights"
