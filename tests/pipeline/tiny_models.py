"""Tiny random models in the layout of the embedded ones: a LLaVA, a CLIP, and files of queries."""

import json

from tests.models.conftest import make_picture

from fusevlm.testing import tiny

CONFIG = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
train = "train.jsonl"
n_test = 16

[sample]
model = "vlm"
n = 4
max_new_tokens = 3
batch = 8

[embed]
towers = "dual_encoder"

[adapter]
source = "train"
inducing = 8
steps = 3

[calibrate]
methods = ["practical", "evidence-only", "prior-only", "distinct"]

[evaluate]
bootstrap = 20
slices = ["kind"]

[report]
examples = 3
figures = ["fuse-ntl", "qualitative"]
pdf = false
"""

# two datasets of the same files, resampled by other units; a registered model
BENCH = """
[bench]
rows = ["practical", "prior-only"]

[[dataset]]
name = "first"
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
train = "train.jsonl"
n_test = 12
unit = "kind"

[[dataset]]
name = "second, half"
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
train = "train.jsonl"
n_test = 12

[[model]]
name = "tiny"
model = "tiny:llava"
towers = "towers"
adapter = "train"

[sample]
n = 4
max_new_tokens = 3
batch = 8

[adapter]
inducing = 8
steps = 3

[score]
baselines = ["distinct", "g_nll", "eigv", "p_true"]

[evaluate]
bootstrap = 10

[report]
examples = 0
figures = ["risk-coverage"]
pdf = false
"""


def save_models(folder):
    tiny.save("llava", folder / "vlm")
    tiny.save_towers(folder / "dual_encoder")


def save_queries(folder, answers):
    """Files of queries; ``answers`` are the right ones, so that both kinds of label occur."""
    words = ("what colour", "how many", "what is the shape", "is the circle red")
    for split, size in {"calibration": 40, "test": 20, "train": 24}.items():
        rows = []
        for k in range(size):
            name = f"{split}-{k}.png"
            make_picture(1000 * len(split) + k).save(folder / name)
            rows.append(
                {
                    "id": str(k),
                    "question": f"{words[k % 4]} {'red ' * (k % 3)}",
                    "image": name,
                    "references": [answers[k % len(answers)]],
                    "kind": "even" if k % 2 == 0 else "odd",
                }
            )
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
