"""A run that is small and real: the embedded model, all eleven stages, five seconds."""

import json
import re
from pathlib import Path

from fusevlm.data.images import load_image
from fusevlm.store import runs

CONFIG = """
[data]
n_calibration = 40
n_test = 40
unit = "image_id"
train = ["pairs.jsonl"]

[sample]
n = 3
batch = 16

[embed]
batch = 8

[adapter]
source = "train"
inducing = 6
latent = 2
steps = 12

[semantics]
similarity = "string"

[score]
baselines = ["g_nll", "distinct", "eccentricity"]

[calibrate]
methods = ["practical", "prior-only", "g_nll"]

[evaluate]
bootstrap = 10
slices = ["severity"]

[report]
figures = ["roc", "qualitative"]
pdf = false
examples = 4
"""
SECONDS = re.compile(rb'"(seconds|sha256)": *("[0-9a-f]*"|[0-9.e+-]+)')


def prepare(home: Path) -> Path:
    """Training pairs and a config in ``home``; the path of the config."""
    from fusevlm.data.questions import queries

    (home / "pairs").mkdir(parents=True)
    rows = []
    for k, query in enumerate(queries("dev", limit=24)):
        load_image(query.images[0]).save(home / "pairs" / f"{k}.png")
        rows.append({"question": query.question, "image": f"pairs/{k}.png"})
    (home / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = home / "own.toml"
    path.write_text(CONFIG)
    return path


def results(run: Path) -> dict[str, bytes]:
    """All that a run found, by name: every file of every stage but its times and its lock.

    What was set aside, and what an interrupted write left, is no result.
    """
    found = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        aside = runs.OLD.fullmatch(name.partition("/")[0]) or runs.SPOILT.fullmatch(path.name)
        if aside or not path.is_file() or path.name in runs.NOTES or name.startswith("cache/"):
            continue
        content = path.read_bytes()
        # of a trained adapter its record tells how long that took
        found[name] = SECONDS.sub(b"", content) if name == "train/model/adapter.json" else content
    return found
