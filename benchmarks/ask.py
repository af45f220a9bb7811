"""``ask`` against ``import torch, transformers`` in one process, and what FUSE adds to sampling.

Cold: load and first answer in a fresh process, above the import. Warm: the median of later answers.
FUSE's own cost: prior (towers and adapter), evidence and fusion of a batch, against sampling it.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.timing import Row

N_BATCH = 128
COLD = """
import json, sys, time
start = time.perf_counter()
import torch, transformers
imported = time.perf_counter()
import transformers.modeling_utils
theirs = time.perf_counter()
import fusevlm
assistant = fusevlm.load("embedded")
loaded = time.perf_counter()
assistant.ask(sys.argv[1], "what color is the shape?")
asked = time.perf_counter()
print(json.dumps([imported - start, theirs - imported, loaded - theirs, asked - loaded]))
"""
WARM = """
import json, logging, statistics, sys, time
start = time.perf_counter()
import torch, transformers
imported = time.perf_counter() - start
import fusevlm
from fusevlm.models.temperatures import stratified
from fusevlm.data.questions import queries
logging.getLogger("fusevlm").setLevel(logging.ERROR)
assistant, asked = fusevlm.load("embedded"), queries("calibration", limit=int(sys.argv[1]))
seconds = []
for query in asked[:40]:
    start = time.perf_counter()
    assistant.ask(query.images[0], query.question)
    seconds.append(time.perf_counter() - start)
heat, found = stratified(20), []
start = time.perf_counter()
for begin in range(0, len(asked), 16):
    found += assistant.model.sample(asked[begin : begin + 16], 20, heat, 0)
sampling = time.perf_counter() - start
start = time.perf_counter()
image = assistant.towers.images([query.images[0] for query in asked])
text = assistant.towers.texts([query.question for query in asked]).vectors
embedding = time.perf_counter() - start
start = time.perf_counter()
s = assistant.adapter.statistics(image, text)["s"]
prior = time.perf_counter() - start
start = time.perf_counter()
assistant.fuse.predict_proba([g.samples for g in found], s=s)
fusion = time.perf_counter() - start
print(json.dumps([imported, statistics.median(seconds), sampling, embedding, prior, fusion]))
"""


def run(repeats: int = 3) -> list[Row]:
    picture = _picture()
    colds = [_measure(COLD, picture) for _ in range(repeats)]
    imported, theirs, loaded, first = min(colds, key=lambda row: sum(row[1:]))
    warm_import, warm, sampling, embedding, prior, fusion = _measure(WARM, str(N_BATCH))
    own = embedding + prior + fusion
    ms = 1e3 / N_BATCH
    return [
        Row("ask, cold, above import torch, transformers", theirs + loaded + first, "s", 2.0,
            f"transformers' model code, which its import leaves out, {theirs:.2f} s; load "
            f"{loaded:.2f} s; first answer {first:.2f} s; the import {imported:.2f} s",
            at_most=True),
        Row("ask, warm, against that import", 100 * warm / warm_import, "%", 5.0,
            f"{warm * 1e3:.0f} ms against {warm_import:.2f} s", at_most=True),
        Row("FUSE's own cost against sampling", 100 * own / sampling, "%", 5.0,
            f"per query: sampling {sampling * ms:.2f} ms, towers {embedding * ms:.2f} ms, adapter "
            f"{prior * ms:.2f} ms, evidence and fusion {fusion * ms:.2f} ms", at_most=True),
    ]  # fmt: skip


def _measure(code: str, argument: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", code, argument], check=True, capture_output=True, text=True
    )
    numbers: list[float] = json.loads(done.stdout)
    return numbers


def _picture() -> str:
    import easy_vqa

    paths: dict[int, str] = easy_vqa.get_train_image_paths()
    return next(iter(paths.values()))
