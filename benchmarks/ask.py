"""``ask`` against ``import torch, transformers`` in one process, and what FUSE adds to sampling.

Cold: load and first answer in a fresh process, above the imports, transformers' model code among
them. Warm: the median of later answers, and of sampling alone.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.timing import Row

N_ASKED = 40
COLD = """
import json, sys, time
start = time.perf_counter()
import torch, transformers
imported = time.perf_counter()
import transformers.modeling_utils, transformers.models.llava.modeling_llava
import transformers.models.clip.modeling_clip
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
answers, samples = [], []
for query in asked:
    start = time.perf_counter()
    assistant.ask(query.images[0], query.question)
    answers.append(time.perf_counter() - start)
    start = time.perf_counter()
    list(assistant.model.sample([query], 20, stratified(20), 0))
    samples.append(time.perf_counter() - start)
print(json.dumps([imported, statistics.median(answers), statistics.median(samples)]))
"""


def run(repeats: int = 3) -> list[Row]:
    picture = _picture()
    colds = [_measure(COLD, picture) for _ in range(repeats)]
    imported, theirs, loaded, first = min(colds, key=lambda row: sum(row[1:]))
    warm_import, warm, sampling = _measure(WARM, str(N_ASKED))
    return [
        Row("ask, cold, above the imports", loaded + first, "s", 1.0,
            f"load {loaded:.2f} s, first answer {first:.2f} s; torch and transformers "
            f"{imported:.2f} s, transformers' model code {theirs:.2f} s", at_most=True),
        Row("ask, warm, against the import", 100 * warm / warm_import, "%", 5.0,
            f"{warm * 1e3:.0f} ms against {warm_import:.2f} s", at_most=True),
        Row("ask against sampling alone", warm / sampling, "x", None,
            f"{warm * 1e3:.0f} ms against {sampling * 1e3:.0f} ms for 20 samples"),
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
