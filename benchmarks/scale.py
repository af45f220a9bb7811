"""Memory, seconds and bytes of every stage from 2,000 to 200,000 test queries.

    python -m benchmarks.scale --out runs/scale            2,000, 20,000 and 200,000
    python -m benchmarks.scale --out runs/scale --sizes 2000 20000 --engine ray

The model is synthetic (n = 20 samples, hidden states of d = 4096), so that nothing but the pipeline
is measured; questions are embedded by MiniLM, a real one. Calibration is 500 queries at every size.
Each stage runs in a process of its own, whose peak memory is what the system counts. A run that is
there goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from fusevlm.pipeline.run import STAGES, TRAINING
from fusevlm.store.files import size_of
from fusevlm.store.runs import read_manifest
from fusevlm.store.tables import TableWriter
from fusevlm.testing.synthetic import truth

N_CALIBRATION, SIZES = 500, (2000, 20_000, 200_000)
CONFIG = """
name = "scale"
[data]
source = "files"
calibration = "calibration.parquet"
test = "test.parquet"
[sample]
model = "synthetic:d=4096"
n = 20
states = "reduced"
half = true
[embed]
towers = "minilm"
[adapter]
source = "none"
statistic = "mahalanobis_text"
statistics = []
[score]
baselines = ["g_nll", "ntl", "umpire", "eigenscore", "semantic_entropy_rao", "accuracy_probe"]
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
        tomllib.loads(CONFIG)
    return config


def run(words: list[str], log: Path) -> tuple[int, float]:
    """Exit code and peak memory in MB of a command."""
    with log.open("ab") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "fusevlm.cli", *words], stdout=stream, stderr=stream
        )
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_maxrss / 1024


def measure(home: Path, size: int, engine: list[str]) -> dict[str, dict[str, float]]:
    """Peak memory, seconds and bytes by stage; those that are there already are kept."""
    config, folder, notes = prepare(home, size), home / "run", home / "measured.json"
    found = json.loads(notes.read_text()) if notes.is_file() else {}
    total = size + N_CALIBRATION
    for stage in STAGES:
        if stage in TRAINING or stage in found:
            continue
        code, peak = run(["run", str(config), "--run", str(folder), "--only", stage, *engine],
                         home / "log.txt")  # fmt: skip
        if code:
            raise SystemExit(f"{stage} ended with {code}; see {home / 'log.txt'}")
        manifest = read_manifest(folder, stage)
        assert manifest is not None
        found[stage] = {
            "peak_mb": round(peak, 1),
            "seconds": manifest.seconds,
            "ms_per_query": round(1000 * manifest.seconds / total, 4),
            "bytes_per_query": round(size_of(folder / stage) / total, 1),
        }
        notes.write_text(json.dumps(found, indent=1))
        print(f"{size:>7} {stage:10} {found[stage]}", flush=True)
    return found


def table(results: dict[int, dict[str, dict[str, float]]]) -> str:
    """Markdown: a row per stage, the sizes side by side."""
    sizes = list(results)
    heads = [f"{what}, {size:,}" for what in ("MB", "ms a query") for size in sizes]
    lines = [
        "| stage | " + " | ".join([*heads, "bytes a query"]) + " |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for stage in results[sizes[0]]:
        cells = [f"{results[size][stage]['peak_mb']:.0f}" for size in sizes]
        cells += [f"{results[size][stage]['ms_per_query']:.2f}" for size in sizes]
        cells.append(f"{results[sizes[-1]][stage]['bytes_per_query']:,.0f}")
        lines.append(f"| `{stage}` | " + " | ".join(cells) + " |")
    total = sum(own["bytes_per_query"] for own in results[sizes[-1]].values())
    return "\n".join([*lines, f"\nbytes kept a query, all stages together: {total:,.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/scale"))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--engine", choices=("process", "ray"), default="process")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    engine = ["--engine", "ray"] if args.engine == "ray" else []
    results = {size: measure(args.out / str(size), size, engine) for size in args.sizes}
    print(table(results))


if __name__ == "__main__":
    main()
