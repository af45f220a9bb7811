"""Memory, seconds and bytes of every stage from 2,000 to 200,000 test queries.

    python -m benchmarks.scale --out runs/scale            2,000, 20,000 and 200,000
    python -m benchmarks.scale --out runs/scale --sizes 2000 20000 --engine ray
    python -m benchmarks.scale --out runs/workers --sizes 500 2000 --workers 1 2

The model is synthetic (n = 20 samples, hidden states of d = 4096), so that nothing but the pipeline
is measured; questions are embedded by the embedded towers. Calibration is 500 queries at every
size, whose states are all kept. Each stage runs in a process of its own, whose peak memory and CPU
seconds are what the system counts. What a further query costs is the difference of two sizes: what
there is once, such as loading and fitting, is in neither. A run that is there goes on where it
stopped. With --workers: sampling by so many workers of Ray against sampling in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from fusevlm.pipeline.run import STAGES, TRAINING
from fusevlm.store.files import size_of
from fusevlm.store.runs import read_manifest
from fusevlm.store.tables import TableWriter
from fusevlm.testing.synthetic import truth

N_CALIBRATION, SIZES = 500, (2000, 20_000, 200_000)
SLEEP = 0.01  # seconds that the model takes for a query, where engines are compared
Found = dict[str, dict[str, float]]
CONFIG = """
name = "scale"
[data]
source = "files"
calibration = "calibration.parquet"
test = "test.parquet"
[sample]
model = "synthetic:d=4096"
layers = ["last"]
n = 20
states = "reduced"
half = true
[embed]
towers = "embedded"
[adapter]
source = "none"
statistic = "mahalanobis_text"
statistics = []
[score]
baselines = ["g_nll", "ntl", "umpire", "semantic_entropy_rao", "accuracy_probe"]
[calibrate]
methods = ["practical_whitening_low_rank", "g_nll", "umpire"]
[rounds]
use = false
[evaluate]
bootstrap = 100
[report]
pdf = false
"""


def questions(first: int, size: int, path: Path) -> None:
    """A table of questions with their right answers."""
    types = {"id": "string", "question": "string", "references": "list string"}
    with TableWriter(path, types) as writer:
        for start in range(first, first + size, 2048):
            stop = min(start + 2048, first + size)
            asked = [f"what is number {k} like?" for k in range(start, stop)]
            writer.write({
                "id": [str(k) for k in range(start, start + len(asked))],
                "question": asked,
                "references": [[truth(question)] for question in asked],
            })  # fmt: skip


def prepare(home: Path, size: int) -> Path:
    config = home / "scale.toml"
    if not config.is_file():
        home.mkdir(parents=True, exist_ok=True)
        questions(0, N_CALIBRATION, home / "calibration.parquet")
        questions(N_CALIBRATION, size, home / "test.parquet")
        config.write_text(CONFIG)
    return config


def run(words: list[str], log: Path) -> dict[str, float]:
    """Peak memory in MB, seconds of the CPU and by the clock, of a command that must succeed."""
    begun = time.monotonic()
    with log.open("ab") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "fusevlm.cli", *words], stdout=stream, stderr=stream
        )
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {child.returncode}; see {log}")
    return {
        "peak_mb": round(usage.ru_maxrss / 1024, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "wall_s": round(time.monotonic() - begun, 2),
    }


def measure(home: Path, size: int, engine: list[str]) -> Found:
    """Peak memory, seconds and bytes by stage; those that are there already are kept."""
    config, folder, notes = prepare(home, size), home / "run", home / "measured.json"
    found: Found = json.loads(notes.read_text()) if notes.is_file() else {}
    for stage in STAGES:
        if stage in TRAINING or stage in found:
            continue
        words = ["run", str(config), "--run", str(folder), "--only", stage, *engine]
        own = run(words, home / "log.txt")
        found[stage] = {**own, "bytes": size_of(folder / stage)}
        notes.write_text(json.dumps(found, indent=1))
        print(f"{size:>7} {stage:10} {found[stage]}", flush=True)
    return found


def table(results: dict[int, Found]) -> str:
    """Markdown: a row per stage; peaks by size, and what a further query costs between sizes."""
    sizes = sorted(results)
    steps = list(pairwise(sizes))
    heads = [f"MB, {size:,}" for size in sizes]
    heads += [f"CPU ms a query, {a:,} → {b:,}" for a, b in steps]
    lines = [
        "| stage | " + " | ".join([*heads, "bytes a query"]) + " |",
        "|---" * (len(heads) + 2) + "|",
    ]
    totals = [0.0] * (len(steps) + 1)
    for stage in results[sizes[0]]:
        costs = [1000 * further(results, stage, "cpu_s", *step) for step in steps]
        costs.append(further(results, stage, "bytes", sizes[0], sizes[-1]))
        totals = [total + cost for total, cost in zip(totals, costs, strict=True)]
        cells = [f"{results[size][stage]['peak_mb']:.0f}" for size in sizes]
        lines.append(f"| `{stage}` | " + " | ".join([*cells, *map(shown, costs)]) + " |")
    peaks = [f"{max(own['peak_mb'] for own in results[size].values()):.0f}" for size in sizes]
    return "\n".join([*lines, "| all | " + " | ".join([*peaks, *map(shown, totals)]) + " |"])


def further(results: dict[int, Found], stage: str, what: str, few: int, many: int) -> float:
    """What one further query costs, between two sizes."""
    return (results[many][stage][what] - results[few][stage][what]) / (many - few)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def overhead(home: Path, sizes: list[int], workers: list[int]) -> None:
    """Sampling in this process and by workers of Ray: seconds by the clock, once and a query."""
    alone = 0.0
    for count in (0, *workers):
        few, many = (sampled(home / str(size), size, count) for size in (min(sizes), max(sizes)))
        each = (many - few) / (max(sizes) - min(sizes))
        once = max(0.0, many - each * (max(sizes) + N_CALIBRATION))
        alone = alone or each
        who = f"{count} worker{'s' * (count > 1)} of Ray" if count else "this process"
        print(
            f"{who}: {few:.1f} s for {min(sizes)} test queries, {many:.1f} s for {max(sizes)}; "
            f"{once:.1f} s once, {1000 * each:.1f} ms a further query, "
            f"{each / alone:.2f} times this process",
            flush=True,
        )


def sampled(home: Path, size: int, workers: int) -> float:
    """Seconds of the stage sample, with a model that takes its time."""
    config, folder, log = prepare(home, size), home / f"run-{workers}", home / "log.txt"
    shutil.rmtree(folder, ignore_errors=True)
    words = ["run", str(config), "--run", str(folder)]
    words += ["--set", f"sample.model=synthetic:d=4096,seconds={SLEEP}"]
    run([*words, "--only", "data"], log)
    engine = ["--engine", "ray", "--workers", str(workers)] if workers else []
    run([*words, "--only", "sample", *engine], log)
    manifest = read_manifest(folder, "sample")
    assert manifest is not None
    return manifest.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/scale"))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--engine", choices=("process", "ray"), default="process")
    parser.add_argument("--workers", type=int, nargs="+", help="Ray's, against this process")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    engine = ["--engine", "ray"] if args.engine == "ray" else []
    if args.workers:
        overhead(args.out, args.sizes, args.workers)
        return
    results = {size: measure(args.out / str(size), size, engine) for size in args.sizes}
    print(table(results))


if __name__ == "__main__":
    main()
