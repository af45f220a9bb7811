"""``fusevlm serve`` and ``fusevlm mcp``: a model before people, and before agents."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

from fusevlm.checks import extra
from fusevlm.cli import EXIT_OK, Verb
from fusevlm.cli.terminal import tell
from fusevlm.errors import InputError, library_quiet

if TYPE_CHECKING:
    from fusevlm.serve.desk import Desk

TOKEN = "FUSEVLM_SERVE_TOKEN"
NONE = "none"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

SERVE = """\
examples:
  fusevlm serve                                    the embedded model, at http://127.0.0.1:8000
  fusevlm serve --model runs/own-vlm --risk 0.1    a run folder with its own calibration
  fusevlm serve --model openai:llava@http://localhost:8000/v1 --fit fits/mine --port 8080
  fusevlm serve --model none --fit fits/mine       no model: POST /v1/score judges your samples
  fusevlm serve --feedback feedback.jsonl          then: fusevlm fit feedback.jsonl

the page is at /, OpenAI-compatible clients use http://HOST:PORT/v1. A token in the environment
variable FUSEVLM_SERVE_TOKEN is asked of every client; other machines are served only with one,
or with --no-token. The log goes to standard error, as JSON lines. Ctrl-C or SIGTERM ends it: what
is under way is finished."""
MCP = """\
examples:
  fusevlm mcp                            the embedded model, over standard input and output
  fusevlm mcp --model runs/own-vlm --images photos

an agent starts this command and calls the tools ask and score. A picture is a data URL; with
--images DIR also the name of a file in that folder."""


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="embedded", metavar="MODEL",
        help="embedded, a run folder, with --fit any other model, or none (embedded)",
    )  # fmt: skip
    parser.add_argument(
        "--fit", metavar="FIT",
        help="folder that fusevlm fit wrote: judges brought samples, and another model's",
    )  # fmt: skip
    parser.add_argument("--name", help="what the model is called before people (its own)")
    parser.add_argument("--risk", type=float, default=0.05, help="wanted error rate (0.05)")
    parser.add_argument("--delta", type=float, default=0.1, help="chance to miss it (0.1)")
    parser.add_argument("-n", type=int, default=10, help="samples of another model (10)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of those samples (1.0)")
    parser.add_argument("--batch", type=int, default=16, help="queries asked together (16)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for an answer (60)")
    parser.add_argument(
        "--max-megapixels", type=float, default=25.0, metavar="M", help="of a picture (25)"
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one (8000)")
    _add_shared(parser)
    parser.add_argument(
        "--on-abstain", default="flag", choices=("flag", "refuse"),
        help="what a chat gets then: the answer with its warning, or a refusal (flag)",
    )  # fmt: skip
    parser.add_argument("--feedback", metavar="FILE", help="table of what people say, .jsonl")
    parser.add_argument("--queue", type=int, default=128, help="queries that may wait (128)")
    parser.add_argument("--workers", type=int, default=1, help="batches at a time (1)")
    parser.add_argument(
        "--max-mb", type=float, default=12.0, metavar="MB", help="of a request (12)"
    )
    parser.add_argument(
        "--no-token", action="store_true", help="serve other machines without a token"
    )


def _add_mcp(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    parser.add_argument("--images", metavar="DIR", help="folder whose pictures may be named")


def _desk(args: argparse.Namespace) -> Desk:
    """The model, the fit and the limits that the arguments name."""
    from fusevlm.serve.answerers import load_answerer, public_name
    from fusevlm.serve.desk import Desk, Offer
    from fusevlm.serve.feedback import Feedback
    from fusevlm.serve.limits import Limits

    limits = Limits(
        batch=args.batch,
        seconds=args.timeout,
        pixels=round(1e6 * args.max_megapixels),
        queue=getattr(args, "queue", Limits.queue),
        workers=getattr(args, "workers", Limits.workers),
        body_bytes=round(1e6 * getattr(args, "max_mb", Limits.body_bytes / 1e6)),
    )
    offer = Offer(
        args.name or public_name(args.model), args.risk, args.delta,
        getattr(args, "on_abstain", "flag"),
    )  # fmt: skip
    table = getattr(args, "feedback", None)
    feedback = None if table is None else Feedback(table)
    scorer, answerer = None, None
    if args.fit is not None:
        from fusevlm.scorer import Scorer

        scorer = Scorer.load(args.fit)
    if args.model != NONE:
        answerer = load_answerer(args.model, scorer, n=args.n, temperature=args.temperature)
    elif scorer is None:
        raise InputError("--model none serves a fit: name it with --fit FIT.")
    return Desk(answerer, offer, scorer=scorer, limits=limits, feedback=feedback)


def _quiet_models() -> None:
    """Keep what transformers says of its own out of the log."""
    if "transformers" in sys.modules:
        sys.modules["transformers"].logging.set_verbosity_error()


def _log() -> None:
    """From now on JSON lines, on standard error."""
    from fusevlm.serve.logs import LOGGER, JsonLines

    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
    logging.getLogger(LOGGER).setLevel(logging.INFO)


def _serve(args: argparse.Namespace) -> int:
    for module in ("fastapi", "uvicorn"):
        extra(module, "fusevlm serve", "server")
    from fusevlm.serve.app import create_app
    from fusevlm.serve.connections import bound, run
    from fusevlm.serve.guard import HERE, checked_token
    from fusevlm.serve.logs import note

    token = checked_token(os.environ.get(TOKEN))
    here = args.host in LOOPBACK
    if not (here or token or args.no_token):
        raise InputError(
            f"other machines can reach {args.host}, and there is no token: set {TOKEN}, or say "
            f"--no-token."
        )
    listening = bound(args.host, args.port)
    port = listening.getsockname()[1]
    with library_quiet(), listening:
        desk = _desk(args)
        _quiet_models()
        host = f"[{args.host}]" if ":" in args.host else args.host
        if not args.quiet:
            tell(f"{desk.offer.name} at http://{host}:{port}   (Ctrl-C ends it)", error=True)
        _log()
        note("begun", model=desk.offer.name, host=args.host, port=port, token=token is not None)
        run(create_app(desk, token=token, hosts=HERE if here else None), listening, desk.limits)
        note("ended")
    return EXIT_OK


def _mcp(args: argparse.Namespace) -> int:
    extra("mcp", "fusevlm mcp", "mcp")
    from fusevlm.serve.agents import run

    with library_quiet():
        desk = _desk(args)
        _quiet_models()
        _log()
        run(desk, args.images)
    return EXIT_OK


VERBS = {"serve": Verb(SERVE, _add_serve, _serve), "mcp": Verb(MCP, _add_mcp, _mcp)}
