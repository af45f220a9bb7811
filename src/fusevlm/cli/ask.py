"""``fusevlm ask IMAGE QUESTION``."""

from __future__ import annotations

import argparse
import json

from fusevlm.cli import Verb

EPILOG = """\
examples:
  fusevlm ask picture.png "what color is the shape?"
  fusevlm ask picture.png "how many corners are there?" --risk 0.1 --json
  fusevlm ask photo.jpg "what is on the table?" --model runs/own-vlm

the model is the embedded one, or that of a run folder with its own calibration"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", help="any image file")
    parser.add_argument("question")
    parser.add_argument("--model", default="embedded", help="embedded, or a run folder (embedded)")
    parser.add_argument("--risk", type=float, default=0.05, help="wanted error rate (0.05)")
    parser.add_argument("--delta", type=float, default=0.1, help="chance to miss it (0.1)")
    parser.add_argument("-n", type=int, help="sampled answers (the model's: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _run(args: argparse.Namespace) -> int:
    from fusevlm.assistant import load
    from fusevlm.data.images import load_image
    from fusevlm.errors import InputError, library_quiet

    # before the models: a wrong path should cost nothing
    picture = load_image(args.image)
    if not args.question.strip():
        raise InputError("the question is empty.")
    with library_quiet():  # the answer itself says what is odd
        found = load(args.model).ask(
            picture, args.question, risk=args.risk, delta=args.delta, n=args.n, seed=args.seed
        )
    print(json.dumps(found.as_dict(), indent=1, ensure_ascii=False) if args.json else found)
    return 0


VERBS = {"ask": Verb(EPILOG, _add, _run)}
