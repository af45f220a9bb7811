"""What ``run``, ``demo`` and the single-stage verbs share: progress, summary, interruption."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fusevlm.cli.progress import progress_line
from fusevlm.config import Config
from fusevlm.render.text import results_text

SET_HELP = "section.key=value on top of the config (repeatable)"


def bring_up_to_date(
    run: Path,
    config: Config,
    *,
    command: Sequence[str],
    quiet: bool,
    only: str | None = None,
    redo: str | None = None,
) -> int:
    """Run the stages; ``command`` goes on after an interruption, ``--redo`` added to it redoes."""
    import shlex

    from fusevlm.cli import EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL
    from fusevlm.pipeline.run import run_stages

    say: Callable[[str], None] = (lambda text: None) if quiet else _say
    again = shlex.join(["fusevlm", *command])

    def redo_command(stage: str) -> str:
        if only is None or command[0] == "run":
            return f"{again} --redo {stage}"
        if stage == only:
            return f"{again} --redo"
        return f"fusevlm run CONFIG --run {shlex.quote(str(run))} --redo {stage}"

    try:
        manifests = run_stages(
            run,
            config,
            only=only,
            redo=redo,
            say=say,
            progress=lambda stage: progress_line(stage, quiet=quiet),
            redo_command=redo_command,
        )
    except KeyboardInterrupt:
        print(f"\ninterrupted; what is done is kept. Go on with: {again}", file=sys.stderr)
        return EXIT_INTERRUPTED
    failed = manifests["score"].counts["failed"] if "score" in manifests else 0
    if failed:
        print(f"failed and left out: {failed} (reasons: {run / 'score' / 'failed.json'})")
    return EXIT_PARTIAL if failed else EXIT_OK


def print_summary(run: Path, *, times: bool) -> None:
    """The figures, where they are, and how long each stage took."""
    from fusevlm.pipeline.evaluate import RESULTS, TABLE, read_results
    from fusevlm.pipeline.report import PAGE
    from fusevlm.pipeline.run import STAGES
    from fusevlm.store.runs import read_manifest

    print(results_text(read_results(run)))
    if times:
        found = [(name, read_manifest(run, name)) for name in STAGES]
        spent = [(name, m.seconds) for name, m in found if m is not None]
        listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent)
        print(f"\nseconds: {listed}; together {sum(seconds for _, seconds in spent):.0f}")
    print(f"\nresults: {run / 'evaluate' / RESULTS}\ntable:   {run / 'evaluate' / TABLE}")
    if (run / "report" / PAGE).is_file():
        print(f"page:    {run / 'report' / PAGE}")


def add_single(parser: argparse.ArgumentParser) -> None:
    """Arguments of a verb that makes one stage of a run."""
    parser.add_argument("run", metavar="RUN", help="run folder of fusevlm run")
    parser.add_argument("--redo", action="store_true", help="make it and what follows again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)


def run_single(stage: str, args: argparse.Namespace) -> int:
    """Make one stage with the config stored in the run folder."""
    from fusevlm.config import change_config
    from fusevlm.store.runs import read_run

    run = Path(args.run)
    config = change_config(read_run(run), args.set)
    words = [stage, args.run, *[word for change in args.set for word in ("--set", change)]]
    return bring_up_to_date(
        run,
        config,
        command=words,
        quiet=args.quiet,
        only=stage,
        redo=stage if args.redo else None,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
