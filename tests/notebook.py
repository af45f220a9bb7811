"""Run docs/tour.ipynb from its first cell to its last: ``python -m tests.notebook [OUT]``.

What it gave is written in its place (``make notebook``), or to OUT. Numbers of cells, times and
addresses in memory are left out, so that only what changed changes.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "tour.ipynb"
ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
THREADS = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}  # another's, where ipywidgets is not


def executed(path: Path) -> Any:
    """The notebook with its outputs anew; a cell that fails is an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            IPYTHONDIR=folder, JUPYTER_RUNTIME_DIR=folder, **THREADS, **OFFLINE, **QUIET
        )
        NotebookClient(
            notebook, kernel_name="python3", timeout=600, resources={"metadata": {"path": folder}},
            coalesce_streams=True,
        ).execute()  # fmt: skip
    return notebook


def cleaned(notebook: Any) -> Any:
    """Without what differs from one machine, or one time, to another."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            for one in cell.outputs:
                if "data" in one:
                    one.metadata = {}
                    one.data["text/plain"] = ADDRESS.sub("", one.data["text/plain"])
                if one.output_type == "execute_result":
                    one.execution_count = None
    return notebook


def main(words: list[str]) -> None:
    import nbformat

    nbformat.write(cleaned(executed(NOTEBOOK)), words[0] if words else NOTEBOOK)


if __name__ == "__main__":
    main(sys.argv[1:])
