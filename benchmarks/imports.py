"""What ``import fusevlm`` costs, against ``import numpy`` in the same run."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import Row

CODE = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def run(repeats: int = 7) -> list[Row]:
    ours, numpy = (_best(module, repeats) for module in ("fusevlm", "numpy"))
    return [
        Row("import fusevlm against import numpy", ours / numpy, "x its time", 2.0,
            f"{ours * 1e3:.1f} ms against {numpy * 1e3:.1f} ms", at_most=True)
    ]  # fmt: skip


def _best(module: str, repeats: int) -> float:
    """Fastest of several fresh processes, inside the process: interpreter start left out."""
    command = [sys.executable, "-c", CODE.format(module)]
    runs = (
        subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(repeats)
    )
    return min(float(run.stdout) for run in runs)
