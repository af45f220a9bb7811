"""``fusevlm moments D N``."""

from __future__ import annotations

import argparse

from fusevlm.maths.wishart import scatter_moments

EPILOG = "example:\n  fusevlm moments 5120 50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("d", type=int, help="features of a response embedding")
    parser.add_argument("n", type=int, help="sampled responses; n > d uses the d×d scatter")


def run(args: argparse.Namespace) -> int:
    a0, v = scatter_moments(args.n, args.d)
    slope = min(args.n, args.d)
    print(f"a0 = {a0:.12g}\nv = {v:.12g}\nslope = {slope}\nslope²/v = {slope**2 / v:.6g}")
    return 0
