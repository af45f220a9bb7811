"""``python -m fusevlm.testing MODEL``: one line per check, exit code 1 if any failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fusevlm.errors import FuseError, InputError
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model, registered
from fusevlm.testing.contract import CHECKS, Outcome, check_name, check_promise, run_contract
from fusevlm.testing.trial import make_queries

PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}
EPILOG = """\
examples:
  python -m fusevlm.testing embedded
  python -m fusevlm.testing ./my-vlm --dtype float32 --images photos
  python -m fusevlm.testing mymodels:whatever -n 8
  python -m fusevlm.testing tiny:qwen2_5_vl     a random model of a family, offline

checks:
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the contract suite on the model that ``words`` name."""
    args = _parser().parse_args(words)
    try:
        queries = make_queries(_pictures(args.images) if args.images else ())
        decoding = Decoding(max_new_tokens=args.max_new_tokens)
        model = load_model(args.model, decoding, dtype=args.dtype)
        outcomes = run_contract(model, queries, n=args.n)
    except FuseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    failed = sum(outcome.failed for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    for outcome in outcomes:
        sys.stdout.write(_line(outcome) + "\n")
    passed = len(outcomes) - failed - skipped
    sys.stdout.write(f"{model.name}: {passed} ok, {failed} failed, {skipped} skipped\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    promises = "\n".join(f"  {check_name(check):<16}{check_promise(check)}" for check in CHECKS)
    parser = argparse.ArgumentParser(
        prog="python -m fusevlm.testing",
        description="Does a model keep the promises of fusevlm.models.protocol.Model?",
        epilog=EPILOG + promises,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(f"{name}:…" for name in registered())
    parser.add_argument("model", help=f"embedded, a folder, a hub name, or one of {names}")
    parser.add_argument("-n", "--n", type=int, default=4, help="samples per query (4)")
    parser.add_argument("--images", type=Path, metavar="DIR", help="pictures (default: generated)")
    parser.add_argument("--max-new-tokens", type=int, default=5, help="token limit (5)")
    parser.add_argument("--dtype", default="auto", help="of the weights (auto)")
    return parser


def _pictures(folder: Path) -> list[Path]:
    """The first few pictures of a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of pictures.")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
    if len(found) < 2:
        raise InputError(f"{folder} holds {len(found)} pictures; expected at least 2.")
    return found[:4]


def _line(outcome: Outcome) -> str:
    word = "FAILED " if outcome.failed else "skipped " if outcome.skipped else ""
    return f"{outcome.name:<16}{word}{outcome.detail if word else 'ok'}"


if __name__ == "__main__":
    sys.exit(main())
