"""Synthetic pairs at D = 768 through the store to the adapter: memory, pairs and steps a second.

``python -m benchmarks pairs``. Each size runs in a process of its own, whose peak of resident
memory is read after every phase. FUSEVLM_BENCH_PAIRS (such as 5000,20000) changes the sizes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.timing import Row, clock

D, Q, M, PART, BATCH = 768, 10, 250, 4096, 128
SIZES = tuple(map(int, os.environ.get("FUSEVLM_BENCH_PAIRS", "50000,200000").split(",")))
# float64 [N, Q] arrays alive at the peak of a step: values, Adam's two means, the gradient of both
# modalities and of the prior, the start, and what a step makes on the way
LATENT_ARRAYS = 12


def peak() -> float:
    """Largest resident memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def made(n: int, rng: np.random.Generator, maps: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Unit vectors of both modalities with a shared latent."""
    x = rng.standard_normal((n, 6))
    found = {}
    for name, W in zip(("image", "text"), maps, strict=True):
        rows = np.sin(x @ W) + 0.5 + 0.3 * rng.standard_normal((n, D))
        found[name] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return found


def measured(n: int, folder: Path) -> dict[str, float]:
    """Write n pairs in parts, open them, take steps of both objectives."""
    import torch

    from fusevlm.priors.gp.adapter import GpAdapter
    from fusevlm.priors.gp.objectives import objective_for
    from fusevlm.priors.gp.options import resolve
    from fusevlm.priors.gp.parallel import Team
    from fusevlm.priors.gp.task import prepare
    from fusevlm.priors.gp.train import seconds_per_step
    from fusevlm.priors.interface import check_pairs
    from fusevlm.store.pairs import KIND, open_pairs, write_pairs
    from fusevlm.store.parts import Parts

    assert GpAdapter.primary == "s"  # all that training needs is loaded before memory is read
    rng = np.random.default_rng(0)
    maps = [rng.standard_normal((6, D)) / 2 for _ in range(2)]
    found = {"imports": peak()}
    parts, writing = Parts(folder, KIND), 0.0
    for index, start in enumerate(range(0, n, PART)):
        size = min(PART, n - start)
        arrays = made(size, rng, maps)
        rows = {"query_id": [str(start + k) for k in range(size)], "error": [None] * size}
        with clock() as spent:
            write_pairs(parts, index, rows, arrays)
        writing += spent.seconds
    found |= {"written": n / writing, "store": peak()}
    found["disk"] = sum(p.stat().st_size for p in folder.iterdir()) / 1e6
    with clock() as spent:
        stored = open_pairs(folder)
        check_pairs(stored["image"], stored["text"])
    found |= {"read": n / spent.seconds, "opened": peak()}
    for preset in ("default", "paper"):
        options = resolve(preset, n_latent=Q, n_inducing=M)
        with clock() as spent:
            task = prepare(stored, options, Team(), torch.device("cpu"))
        objective = objective_for(task, options, Team())
        steps = 2 if preset == "default" else 3
        pace = seconds_per_step(objective, options, Team(), n_steps=steps)
        found |= {f"{preset} start": spent.seconds, f"{preset} step": pace, f"{preset}": peak()}
        found[f"{preset} steps"] = float(objective.n_steps)
    return found


def run() -> Iterator[Row]:
    """A process for each size; memory of a step must not grow by more than the latents do."""
    found = {}
    for n in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "benchmarks.pairs", str(n), folder]
            out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        one = found[n] = json.loads(out)
        shape = f"D = {D}, M = {M}, Q = {Q}"
        yield Row(f"{n} pairs: written", one["written"], "pairs/s", None, "float16, with checksums")
        yield Row(f"{n} pairs: opened and checked", one["read"], "pairs/s", None, "")
        yield Row(f"{n} pairs: on disk", one["disk"], "MB", None, "")
        for phase in ("store", "opened", "default", "paper"):
            extra = one[phase] - one["imports"]
            yield Row(f"{n} pairs: peak after {phase}", extra, "MB", None, "beyond imports")
        yield Row(f"{n} pairs: start (PCA)", one["default start"], "s", None, shape)
        for preset in ("default", "paper"):
            pace, steps = one[f"{preset} step"], one[f"{preset} steps"]
            hours = f"{steps:.0f} steps: {pace * steps / 3600:.3g} h"
            yield Row(f"{n} pairs: step, {preset}", pace, "s", None, hours)
    few, many = min(SIZES), max(SIZES)
    if few < many:
        grown = found[many]["default"] - found[few]["default"]
        latents = LATENT_ARRAYS * (many - few) * Q * 8 / 1e6
        detail = f"from {few} to {many}; {LATENT_ARRAYS} arrays of latents are {latents:.0f} MB"
        yield Row("growth of a step's peak", grown, "MB", latents, detail, at_most=True)


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), Path(sys.argv[2]))))
