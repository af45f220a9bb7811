"""Runs: ``demo``, ``run``, a verb for each stage worth one, ``ls`` and ``validate``.

All verbs of one run work on one folder, and a stage's verb makes what it rests on too.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL, Verb
from fusevlm.cli.progress import progress_line
from fusevlm.cli.terminal import confirmed, tell
from fusevlm.config import DEMO_QUERIES, change_config, demo_config, limited, read_config
from fusevlm.errors import InputError, library_quiet
from fusevlm.pipeline.parts import ALL, PASSING
from fusevlm.settings import Config

SET_HELP = "section.key=value on top of the config (repeatable)"
REDO_HELP = "set it and those after it aside (STAGE.old-N) and make them again"
LIMIT_HELP = "at most so many queries of each split"
DRY_RUN_HELP = "load nothing: what is needed, missing or unknown; memory, disk, hours"
REHEARSE_HELP = "all of it with tiny stand-ins for models and data, in a folder of its own"


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="DIR", help="run folder (runs/NAME)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument("--limit", type=int, metavar="N", help=LIMIT_HELP)


BUDGET = {  # of a model behind a server: flags for keys of [server]
    "--max-calls": ("N", "calls of a model behind a server, all sessions of the run together"),
    "--max-tokens": ("N", "tokens of its prompts and answers"),
    "--max-cost": ("X", "money, in the unit of server.price_prompt and server.price_answer"),
}


def add_budget(parser: argparse.ArgumentParser) -> None:
    """What may be used of a service, and whether failed queries are asked again."""
    for flag, (word, line) in BUDGET.items():
        parser.add_argument(flag, metavar=word, help=line)
    parser.add_argument(
        "--retry-failed", action="store_true", help="try all failed queries again, whatever failed"
    )


ENGINES = ("process", "ray")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Who makes the parts of stages that have some."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="who samples, embeds and scores: this process, or workers of a Ray cluster (process)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of a Ray cluster that runs, or auto; else one is started on this machine",
    )
    parser.add_argument("--workers", metavar="N", help="of the cluster (one for each GPU or CPU)")


def engine_changes(args: argparse.Namespace) -> list[str]:
    """The flags of the engine as changes of the config."""
    given = {name: getattr(args, name, None) for name in ("address", "workers")}
    if any(given.values()) and args.engine != "ray":
        raise InputError("--address and --workers go with --engine ray.")
    return [f"cluster.{name}={value}" for name, value in given.items() if value]


def budget_changes(args: argparse.Namespace) -> list[str]:
    """The flags of the budget as changes of the config."""
    names = [flag[2:].replace("-", "_") for flag in BUDGET]
    return [f"server.{n}={getattr(args, n)}" for n in names if getattr(args, n, None) is not None]


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=int, default=DEMO_QUERIES, help="queries, half of them to calibrate (3000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of sampling and splits (0)")
    parser.add_argument("--out", metavar="DIR", help="run folder (runs/demo…)")
    parser.add_argument("--redo", metavar="STAGE", help=REDO_HELP)
    parser.add_argument(
        "--simulation", action="store_true", help="simulated responses with a known truth instead"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="CONFIG|RUN", help="TOML file, or a run folder")
    _add_shared(parser)
    parser.add_argument("--only", metavar="STAGE", help="this stage alone")
    parser.add_argument("--redo", metavar="STAGE", help=REDO_HELP)
    add_engine(parser)
    add_budget(parser)
    add_trials(parser)


def add_trials(parser: argparse.ArgumentParser) -> None:
    """What can be done before the real thing."""
    parser.add_argument("--dry-run", action="store_true", help=DRY_RUN_HELP)
    parser.add_argument("--rehearse", action="store_true", help=REHEARSE_HELP)
    _add_gpu(parser)


def _add_gpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tflops", type=float, default=100.0, help="of the GPU, sustained (100)")
    parser.add_argument(
        "--bandwidth", type=float, default=1000.0, help="of its memory in GB/s, sustained (1000)"
    )


def _add_stage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="CONFIG|RUN", help="TOML file, or a run folder")
    _add_shared(parser)
    parser.add_argument("--redo", action="store_true", help="make it and what follows again")
    add_engine(parser)
    add_budget(parser)


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_stage(parser)
    parser.add_argument("other", nargs="?", metavar="RUN", help="another run, to compare with")
    parser.add_argument("--out", metavar="FILE", help="page of a comparison (compare.html)")


def _report(args: argparse.Namespace) -> int:
    if args.other is None:
        if args.out:
            raise InputError("--out goes with two runs; the page of one is in its folder.")
        return _stage("report")(args)
    from fusevlm.pipeline.compare import check_two, compare_page
    from fusevlm.store import save

    page = Path(args.out or "compare.html")
    save(page, compare_page(*check_two([args.target, args.other])).encode())
    tell(f"page: {page}")
    return EXIT_OK


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="TOML file")
    _add_shared(parser)


def _add_ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default="runs", metavar="DIR", help="a run, or a folder of runs (runs)"
    )


def _run(args: argparse.Namespace) -> int:
    folder, config = _target(args)
    if args.dry_run:
        return print_dry_run({config.name: config}, args)
    words = _given(args)
    if args.rehearse:
        from fusevlm.testing.rehearsal import rehearse_run, save_log

        folder = rehearsal_folder(folder, args.redo or args.only)
        config, log = rehearse_run(config, folder)
        save_log(folder, config.name, log)
        print_stand_ins(log, folder, args.quiet)
        words.append("--rehearse")
    # of random models everything drifts and nothing is calibrated: no need to say so
    with library_quiet() if args.rehearse else nullcontext():
        code = bring_up_to_date(
            folder,
            config,
            command=["run", args.target, *words],
            quiet=args.quiet,
            only=args.only,
            redo=args.redo,
            again=ALL if args.retry_failed else PASSING,
            engine=args.engine,
        )
    if code != EXIT_INTERRUPTED and args.only in (None, "evaluate"):
        print_summary(folder, times=args.only is None)
    return code


def rehearsal_folder(folder: Path, part: str | None) -> Path:
    """Beside the real one, never in it."""
    if part:
        raise InputError("a rehearsal begins afresh each time; leave --redo and --only out.")
    return folder.with_name(f"{folder.name}-rehearsal")


def print_dry_run(places: Mapping[str, Config], args: argparse.Namespace) -> int:
    """What would be needed; a device or package that is missing here is said, not refused."""
    from fusevlm.pipeline.cost import Gpu, report
    from fusevlm.pipeline.validate import machine_problems

    tell(report(places, Gpu(args.tflops, args.bandwidth)))
    found = [line for config in places.values() for line in machine_problems(config)]
    for line in dict.fromkeys(found):
        tell(f"on this machine: {line}")
    return EXIT_OK


def _add_cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument(
        "--queries", type=int, metavar="N", help="test queries to plan for (those of the config)"
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="G", help="GPUs to plan for (1)")
    parser.add_argument(
        "--trial", type=int, metavar="K", help="test queries of the smaller trial run (64)"
    )
    parser.add_argument(
        "--no-trial", action="store_true", help="nothing is run: what --dry-run says of a run"
    )
    parser.add_argument(
        "--check", type=int, metavar="X", help="then run X times the trial, compare"
    )
    parser.add_argument("--out", metavar="DIR", help="keep the trial's runs there")
    _add_gpu(parser)


def _cost(args: argparse.Namespace) -> int:
    from fusevlm.pipeline import cost, trial
    from fusevlm.store.files import temporary_folder

    config = read_config(args.config, args.set)
    if args.no_trial:
        return print_dry_run({config.name: config}, args)
    for name in ("queries", "gpus", "trial", "check"):
        if getattr(args, name) is not None:
            checks.count(getattr(args, name), f"--{name}")
    queries = args.queries or config.data.n_test or cost.n_queries(config)
    if not queries:
        raise InputError("the config does not say how many queries there are. Say it: --queries N.")
    gpu = cost.Gpu(args.tflops, args.bandwidth)
    with nullcontext(Path(args.out)) if args.out else temporary_folder() as folder:
        say = say_unless(args.quiet)
        with library_quiet():  # of so few queries nothing is certified
            found = trial.measure(config, folder, fewest=args.trial or trial.FEWEST, say=say)
        tell("\n".join(trial.plan(found, config, queries, args.gpus, gpu)))
        if args.check:
            with library_quiet():
                lines = trial.check(found, config, folder, args.check)
            tell("\n" + "\n".join(lines))
    return EXIT_OK


def print_stand_ins(log: Sequence[object], folder: Path, quiet: bool) -> None:
    """What stood in for what."""
    if not quiet:
        tell(f"rehearsal in {folder}; its figures mean nothing. What stands in for what:")
        for one in log:
            tell(f"  {one}")


def _stage(stage: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        folder, config = _target(args)
        code = bring_up_to_date(
            folder,
            config,
            command=[stage, args.target, *_given(args)],
            quiet=args.quiet,
            to=stage,
            redo=stage if args.redo else None,
            again=ALL if args.retry_failed else PASSING,
            engine=args.engine,
        )
        if code == EXIT_INTERRUPTED:
            return code
        if stage == "evaluate":
            print_summary(folder, times=False)
        elif stage == "report":
            tell(f"page: {folder / 'report' / 'index.html'}")
        else:
            tell(f"{stage}: {folder / stage}")
        return code

    return run


def _target(args: argparse.Namespace) -> tuple[Path, Config]:
    """Run folder and config: a run folder knows its config."""
    from fusevlm.store.runs import read_run

    folder = Path(args.target)
    changes = [*args.set, *budget_changes(args), *engine_changes(args)]
    if folder.is_file() or folder.suffix == ".toml":
        config = read_config(args.target, changes)
        return run_folder(args.run, config.name), limited(config, args.limit)
    if args.run:
        raise InputError(f"--run goes with a TOML file; {folder} is the run folder itself.")
    return folder, limited(change_config(read_run(folder), changes), args.limit)


def _given(args: argparse.Namespace) -> list[str]:
    """The shared arguments as words, to name the command again."""
    words = ["--run", args.run] if args.run else []
    words += [word for change in args.set for word in ("--set", change)]
    for flag in BUDGET:
        value = getattr(args, flag[2:].replace("-", "_"), None)
        words += [] if value is None else [flag, value]
    if getattr(args, "engine", "process") == "ray":
        words += ["--engine", "ray"]
        for name in ("address", "workers"):
            value = getattr(args, name)
            words += [f"--{name}", value] if value else []
    return words + (["--limit", str(args.limit)] if args.limit is not None else [])


def run_folder(given: str | None, name: str) -> Path:
    """The folder that was named, or runs/NAME, whatever a config is called."""
    from fusevlm.store.files import slug

    return Path(given) if given else Path("runs") / slug(name)


def bring_up_to_date(
    run: Path,
    config: Config,
    *,
    command: Sequence[str],
    quiet: bool,
    only: str | None = None,
    to: str | None = None,
    redo: str | None = None,
    again: str = PASSING,
    engine: str = "process",
) -> int:
    """Run the stages; ``command`` goes on after an interruption, ``--redo`` added to it redoes."""
    from fusevlm.pipeline.engine import STAGES as AWAY
    from fusevlm.pipeline.run import run_stages
    from fusevlm.pipeline.validate import preflight

    alone = ["--only", only] if only else []
    same = shlex.join(["fusevlm", *command, *alone])

    def redo_command(stage: str) -> str:
        if command[0] == "adapter":
            return shlex.join(["fusevlm", *command, "--redo", stage])
        if to is not None and stage in VERBS:
            return shlex.join(["fusevlm", stage, *command[1:], "--redo"])
        verb = command[0] if to is None else "run"
        kept = alone if stage == only else []  # a stage alone rests on what --redo removes
        return shlex.join(["fusevlm", verb, *command[1:], *kept, "--redo", stage])

    if redo is not None and (run / redo).is_dir():
        asked = f"set {redo} of {run} and the stages after it aside, and make them again?"
        if not confirmed(asked):
            tell("nothing was changed")
            return EXIT_FAILED
    try:
        with open_engine(engine, config) as makes_parts:
            manifests = run_stages(
                run,
                config,
                only=only,
                to=to,
                redo=redo,
                again=again,
                before=lambda stages: preflight(
                    config, run, stages, () if makes_parts is None else AWAY
                ),
                say=say_unless(quiet),
                progress=lambda stage: progress_line(stage, quiet=quiet),
                redo_command=redo_command,
                engine=makes_parts,
            )
    except KeyboardInterrupt:
        tell(f"\ninterrupted; what is done is kept. Go on with: {same}", error=True)
        return EXIT_INTERRUPTED
    last = "score" if "score" in manifests else list(manifests)[-1]
    failed = manifests[last].counts.get("failed", 0)
    if failed:
        reasons = f" (reasons: {run / 'score' / 'failed.json'})" if last == "score" else ""
        tell(f"failed and left out: {failed}{reasons}")
    return EXIT_PARTIAL if failed else EXIT_OK


def open_engine(name: str, config: Config) -> AbstractContextManager[Any]:
    """The engine of that name; None of this process."""
    if name != "ray":
        return nullcontext()
    from fusevlm.pipeline.cluster.engine import RayEngine

    return RayEngine(config.cluster)


def say_unless(quiet: bool) -> Callable[[str], None]:
    """Lines about the work, on standard error."""
    return lambda text: None if quiet else tell(text, error=True)


def print_summary(run: Path, *, times: bool) -> None:
    """The figures, where they are, and how long each stage took."""
    from fusevlm.pipeline.evaluate import RESULTS, TABLE, read_results
    from fusevlm.pipeline.report import PAGE
    from fusevlm.pipeline.run import STAGES
    from fusevlm.render.text import results_text
    from fusevlm.store.runs import read_manifest

    tell(results_text(read_results(run)))
    if times:
        found = [(name, read_manifest(run, name)) for name in STAGES]
        spent = [(name, m.seconds) for name, m in found if m is not None]
        listed = ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent)
        tell(f"\nseconds: {listed}; together {sum(seconds for _, seconds in spent):.0f}")
    tell(f"\nresults: {run / 'evaluate' / RESULTS}\ntable:   {run / 'evaluate' / TABLE}")
    if (run / "report" / PAGE).is_file():
        tell(f"page:    {run / 'report' / PAGE}")


def _demo(args: argparse.Namespace) -> int:
    if args.simulation:
        from fusevlm.cli.simulation import run_simulation

        return run_simulation(args)
    # before numpy and torch are loaded: small models are faster on one thread, and the figures
    # depend on how many there are
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from fusevlm import checks

    config = demo_config(args.limit, args.seed)
    needed = {"easy_vqa": "embedded", "torch": "embedded", "transformers": "embedded",
              "matplotlib": "report"}  # fmt: skip
    for module, extra in needed.items():
        checks.extra(module, "the demo", extra)
    # another limit or seed is another run
    limit = f"-{args.limit}" if args.limit != DEMO_QUERIES else ""
    seed = f"-seed{args.seed}" if args.seed else ""
    folder = Path(args.out) if args.out else Path("runs") / f"demo{limit}{seed}"
    words = ["demo", "--limit", str(args.limit), "--seed", str(args.seed), "--out", str(folder)]
    with library_quiet():  # the tables show it: an inert prior, drift, a poor intercept
        code = bring_up_to_date(folder, config, command=words, quiet=args.quiet, redo=args.redo)
    if code != EXIT_INTERRUPTED:
        print_summary(folder, times=True)
    return code


def _ls(args: argparse.Namespace) -> int:
    from fusevlm.render.text import layout
    from fusevlm.store.files import size_of

    home = Path(args.folder)
    found = runs_in(home)
    if not found:
        tell(f"no runs in {home}")
        return EXIT_OK
    rows = [(str(path), *_standing(path), f"{size_of(path) / 1e6:.1f} MB") for path in found]
    tell(layout(("run", "config", "queries", "stages", "size"), rows))
    return EXIT_OK


def _standing(path: Path) -> tuple[str, str, str]:
    """Config name, number of queries, and where the stages stand."""
    from fusevlm.errors import FuseError
    from fusevlm.pipeline.run import FRESH, MISSING, states
    from fusevlm.store.runs import read_run

    try:
        config = read_run(path)
        found = states(path, config, look_outside=False)
    except FuseError as error:
        return "–", "–", f"damaged: {error}"
    data = found["data"].manifest
    queries = str(sum(data.counts.values())) if data is not None and data.complete else "–"
    fresh = [name for name, state in found.items() if state.kind == FRESH]
    others = [
        f"{name} {state.kind}"
        for name, state in found.items()
        if state.kind not in (FRESH, MISSING)
    ]
    done = "all done" if len(fresh) == len(found) else f"done to {fresh[-1]}" if fresh else "begun"
    return config.name, queries, ", ".join([done, *others])


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument(
        "--repair", action="store_true", help="put away what is damaged, so that it is made again"
    )


def _verify(args: argparse.Namespace) -> int:
    from fusevlm.pipeline.verify import repair, verify

    run = Path(args.run)
    found = repair(run, say_unless(args.quiet)) if args.repair else verify(run)
    for one in found:
        tell(str(one))
    if args.repair:
        again = f"make it again: fusevlm run {shlex.quote(args.run)}"
        tell(f"{len(found)} put right; {again}" if found else "nothing to repair")
        return EXIT_OK
    tell(f"{len(found)} damaged" if found else "all as it was made")
    return EXIT_FAILED if found else EXIT_OK


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default="runs", metavar="DIR", help="a run, or a folder of runs (runs)"
    )
    parser.add_argument("--yes", action="store_true", help="remove it, instead of showing it")


def _clean(args: argparse.Namespace) -> int:
    from fusevlm.errors import ArtefactError
    from fusevlm.pipeline.run import STAGES
    from fusevlm.store.files import hold, remove, size_of
    from fusevlm.store.runs import leftovers

    total, home = 0, Path(args.folder)
    found = [run for run in runs_in(home) if run == home or not run.is_symlink()]
    if not found:
        raise ArtefactError(f"{home} is no run folder and holds none.")
    for run in found:
        with hold(run):
            for path in leftovers(run, STAGES):
                size = size_of(path) if path.is_dir() else path.stat().st_size
                total += size
                if args.yes:
                    remove(path)
                tell(f"{'removed  ' if args.yes else ''}{path}  {size / 1e6:.1f} MB")
    if not total:
        tell("nothing to remove")
    elif not args.yes:
        tell(f"{total / 1e6:.1f} MB in all; remove it with --yes")
    return EXIT_OK


def runs_in(home: Path) -> list[Path]:
    """The run that a folder is, or those in it."""
    from fusevlm.errors import ArtefactError
    from fusevlm.store.runs import is_run

    if not home.is_dir():
        raise ArtefactError(f"{home} is no folder. Make a run first: fusevlm demo.")
    return [home] if is_run(home) else sorted(p for p in home.iterdir() if is_run(p))


def _validate(args: argparse.Namespace) -> int:
    from fusevlm.pipeline.validate import validate

    config = limited(read_config(args.config, args.set), args.limit)
    folder = run_folder(args.run, config.name)
    words = ["run", args.config, *_given(args)]
    found = validate(config, folder, lambda s: shlex.join(["fusevlm", *words, "--redo", s]))
    if not args.quiet:
        tell(f"{args.config} → {folder}")
        for line in found.plan:
            tell(f"  {line}")
    for problem in found.problems:
        tell(f"problem: {problem}")
    tell("ready" if not found.problems else f"{len(found.problems)} problem(s)")
    return EXIT_FAILED if found.problems else EXIT_OK


def _examples(*lines: str, note: str = "") -> str:
    shown = "\n".join(f"  fusevlm {line}" for line in lines)
    return f"examples:\n{shown}" + (f"\n\n{note}" if note else "")


GO_ON = """run the same command again to go on after an interruption;
exit code 3 says that some queries failed"""
VERBS = {
    "demo": Verb(
        _examples("demo", "demo --limit 200", "demo --simulation", note="""\
nothing is downloaded: a small vision-language model, towers and prior come with fusevlm"""),
        _add_demo, _demo,
    ),
    "run": Verb(
        _examples(
            "run configs/demo.toml", "run own-vlm.toml --run runs/llava --set sample.n=50",
            "run own-vlm.toml --limit 20 --run runs/trial", "run runs/trial",
            "run own-vlm.toml --rehearse", "run own-vlm.toml --run /shared/llava --engine ray",
            "run own-vlm.toml --run runs/llava --redo score --set score.layer=middle", note="""\
stages: data, pairs, train, sample, embed, adapter, semantics, score, calibrate, evaluate, report
(pairs and train where the adapter is trained); finished ones are skipped, an interrupted one goes
on; exit code 3 says that some queries failed"""),
        _add_run, _run,
    ),
    "sample": Verb(
        _examples("sample own-vlm.toml --limit 20", "sample runs/llava", note=GO_ON),
        _add_stage, _stage("sample"),
    ),
    "embed": Verb(
        _examples("embed own-vlm.toml --limit 20", "embed runs/llava", note=GO_ON),
        _add_stage, _stage("embed"),
    ),
    "score": Verb(
        _examples("score runs/demo", "score runs/demo --redo --set score.layer=middle"),
        _add_stage, _stage("score"),
    ),
    "calibrate": Verb(
        _examples(
            "calibrate runs/demo",
            "calibrate runs/demo --redo --set calibrate.methods='[\"practical\", \"umpire\"]'"),
        _add_stage, _stage("calibrate"),
    ),
    "evaluate": Verb(
        _examples("evaluate runs/demo", "evaluate runs/demo --redo --set evaluate.risk=0.1"),
        _add_stage, _stage("evaluate"),
    ),
    "report": Verb(
        _examples(
            "report runs/demo", "report runs/demo --redo --set report.examples=50",
            "report runs/llava-7b runs/llava-13b --out compare.html", note="""\
two runs are compared on the test queries that both have"""),
        _add_report, _report,
    ),
    "ls": Verb(_examples("ls", "ls experiments"), _add_ls, _ls),
    "verify": Verb(
        _examples("verify runs/llava", "verify runs/llava --repair", note="""\
reads every file of the run; exit code 1 says that something is damaged. --repair puts damaged
parts and stages away (nothing is deleted), and the next fusevlm run makes them again"""),
        _add_folder, _verify,
    ),
    "clean": Verb(
        _examples("clean", "clean runs/llava --yes", note="""\
stages that were set aside (STAGE.old-1), damaged parts, and what interrupted writes left"""),
        _add_clean, _clean,
    ),
    "cost": Verb(
        _examples(
            "cost own-vlm.toml", "cost own-vlm.toml --queries 100000000 --gpus 64",
            "cost own-vlm.toml --check 10", "cost own-vlm.toml --no-trial", note="""\
runs a few hundred queries on this machine, and says what any number of them would take"""),
        _add_cost, _cost,
    ),
    "validate": Verb(
        _examples(
            "validate configs/demo.toml",
            "validate own-vlm.toml --run runs/llava --set sample.n=50",
            note="exit code 1 says that something is missing"),
        _add_validate, _validate,
    ),
}  # fmt: skip
