"""``fusevlm embed``."""

from __future__ import annotations

import argparse

from fusevlm.cli.progress import progress_line
from fusevlm.models.protocol import PAPER_TOWERS

EPILOG = """\
examples:
  fusevlm embed --queries vqa.jsonl --images val2014 --out runs/clip
  fusevlm embed --towers ./my-clip --queries questions.csv --out runs/mine-clip

run the same command again to go on after an interruption;
exit code 3 says that some queries failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--towers", default=PAPER_TOWERS, help="folder or hub name of CLIP or SigLIP (the paper's)"
    )
    parser.add_argument("--queries", required=True, help="CSV, JSON-lines or Parquet of queries")
    parser.add_argument("--images", help="folder of the images (default: beside the queries)")
    parser.add_argument("--out", required=True, help="run folder")
    parser.add_argument("--batch", type=int, default=64, help="queries embedded together (64)")
    parser.add_argument("--limit", type=int, help="only the first so many queries")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, … (cpu)")
    parser.add_argument("--revision", help="revision of a hub model")


def run(args: argparse.Namespace) -> int:
    from fusevlm import checks
    from fusevlm.data.tables import read_queries

    queries = read_queries(args.queries, args.images, limit=args.limit)
    for module in ("torch", "transformers"):
        checks.extra(module, "fusevlm embed", "torch")
    from fusevlm.cli import EXIT_OK, EXIT_PARTIAL
    from fusevlm.models.towers import Towers
    from fusevlm.pipeline.stages import embed_stage

    towers = Towers.load(args.towers, revision=args.revision, device=args.device)
    outcome = embed_stage(
        towers, queries, args.out, name=args.towers, batch=args.batch,
        progress=progress_line("queries", quiet=args.quiet),
    )  # fmt: skip
    print(f"{outcome.done} queries, {outcome.failed} failed\nrun: {outcome.folder}")
    return EXIT_PARTIAL if outcome.failed else EXIT_OK
