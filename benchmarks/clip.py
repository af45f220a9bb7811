"""What the priors see in real CLIP vectors: the tables of docs/prior.md.

``FUSEVLM_TEST_DATA=DIR python -m benchmarks.clip`` fits on 400 of 500 COCO pairs and asks the other
100. tests/priors/test_clip.py holds bars below some of these figures; this prints all of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from tests.priors.test_clip import LEVELS, blended, cross_modal_gain, mixed, split

from fusevlm.metrics import auroc
from fusevlm.priors import KnnPrior, MahalanobisPrior
from fusevlm.priors.gp.adapter import GpAdapter

SHOWN = ("s", "reconstruction", "latent_distance", "disagreement", "knn", "mahalanobis")


class Priors:
    """All priors fitted on the same pairs, their statistics side by side."""

    def __init__(self, train: np.ndarray) -> None:
        self.adapter = GpAdapter(n_inducing=100).fit(*train)
        self.others = {
            "knn": KnnPrior().fit(*train),
            "mahalanobis": MahalanobisPrior().fit(*train),
        }

    def statistics(self, pairs: np.ndarray) -> dict[str, np.ndarray]:
        found = self.adapter.statistics(*pairs)
        for name, prior in self.others.items():
            found[name] = prior.statistics(*pairs)[prior.primary]
        return {name: found[name] for name in SHOWN}


def above(values: np.ndarray, base: np.ndarray) -> float:
    """AUROC of ``values`` against ``base``."""
    labels = np.repeat([True, False], [len(values), len(base)])
    return auroc(np.concatenate([values, base]), labels)


def line(name: str, found: dict[str, np.ndarray], base: dict[str, np.ndarray]) -> str:
    cells = [f"{found[k].mean():.3f} ({above(found[k], base[k]):.2f})" for k in SHOWN]
    return f"| {name} | " + " | ".join(cells) + " |"


def learnt(name: str, adapter: GpAdapter, train: np.ndarray, held: np.ndarray) -> str:
    shuffled = np.roll(held[1], 1, axis=0)
    matched = adapter.latents(*held).log_joint / held.shape[2] / 2
    crossed = adapter.latents(held[0], shuffled).log_joint / held.shape[2] / 2
    gains = [cross_modal_gain(adapter, train, held, text) for text in (held[1], shuffled)]
    share = float(np.mean(matched > crossed))
    figures = [matched.mean(), crossed.mean(), share, *gains]
    return f"| {name} | " + " | ".join(f"{v:.3f}" for v in figures) + " |"


def main() -> int:
    data = os.environ.get("FUSEVLM_TEST_DATA")
    if data is None:
        print("set FUSEVLM_TEST_DATA to the folder that holds clip_coco_vitb16_500.")
        return 2
    folder = Path(data) / "clip_coco_vitb16_500"
    train, held = split(np.load(folder / "features_clip.npy"))
    priors = Priors(train)
    base = priors.statistics(held)
    print("mean (AUROC against the clean pairs)\n")
    print("| | " + " | ".join(SHOWN) + " |\n|---" + "|---" * len(SHOWN) + "|")
    for level in LEVELS:
        print(line(f"noise {level:.1f}", priors.statistics(mixed(held, level)), base))
    for level in (0.25, 0.5):
        print(line(f"blend {level:g}", priors.statistics(blended(held, level)), base))
    crossed = np.stack([held[0], np.roll(held[1], 1, axis=0)])
    print(line("another caption", priors.statistics(crossed), base))
    control_train, control_held = split(np.load(folder / "features_clip_random.npy"))
    control = GpAdapter(n_inducing=100).fit(*control_train)
    print("\nnat per output on held-out pairs, and the gain of the image's x* for the text\n")
    print(
        "| | matched | shuffled | share above | gain | gain, shuffled |\n|---|---|---|---|---|---|"
    )
    print(learnt("CLIP", priors.adapter, train, held))
    print(learnt("untrained network", control, control_train, control_held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
