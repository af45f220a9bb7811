"""``fusevlm adapter train|apply``: the GP adapter on stored embeddings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusevlm import checks, store
from fusevlm.cli import EXIT_INTERRUPTED, Verb
from fusevlm.cli.progress import progress_line
from fusevlm.cli.runs import SET_HELP, bring_up_to_date, run_folder, say_unless
from fusevlm.cli.terminal import tell
from fusevlm.errors import InputError
from fusevlm.priors.gp.options import PRESETS
from fusevlm.priors.gp.pairs import LAYOUTS, read_pairs
from fusevlm.priors.interface import NORMS

if TYPE_CHECKING:
    from fusevlm.priors.gp.adapter import GpAdapter
    from fusevlm.priors.gp.train import Progress
    from fusevlm.settings import Config

EPILOG = """\
examples:
  fusevlm adapter train own-vlm.toml --run runs/adapter
  fusevlm adapter train configs/paper.toml --run runs/bench-paper
  fusevlm adapter train runs/clip --out adapter
  fusevlm adapter train --image image.npy --text text.npy --inducing 100 --out adapter
  fusevlm adapter apply adapter queries.parquet --out statistics.csv
  torchrun --nproc-per-node 2 -m fusevlm.cli adapter train pairs.npy --out adapter

a config's data.train (COCO, Flickr, VQAv2 … files) is embedded and trained on as it says; an
interrupted training goes on where it stopped when the same command is given again"""


def _add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    learn = actions.add_parser("train", help="fit an adapter on pairs", epilog=EPILOG,
                               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_pairs(learn)
    learn.add_argument("--out", metavar="DIR", help="folder for the adapter")
    learn.add_argument("--run", metavar="DIR", help="folder of a config's run or bench (runs/NAME)")
    learn.add_argument("--redo", metavar="STAGE", help="of a config: make pairs or train again")
    learn.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    learn.add_argument("--preset", choices=tuple(PRESETS), default="default", help="(default)")
    learn.add_argument("--latent", type=int, metavar="Q", help="latent dimensions (10)")
    learn.add_argument("--inducing", type=int, metavar="M", help="inducing points (250)")
    learn.add_argument("--ard", action="store_true", help="a lengthscale per latent dimension")
    learn.add_argument("--steps", type=int, help="full-batch steps at most (300)")
    learn.add_argument("--epochs", type=int, help="passes over the pairs, preset paper (200)")
    learn.add_argument("--batch-size", type=int, help="pairs in a step, preset paper (128)")
    learn.add_argument("--lr", type=float, help="learning rate, latents' too")
    learn.add_argument("--lambda1", type=float, help="of L_emb, preset paper (0.01)")
    learn.add_argument("--lambda2", type=float, help="of L_KL, preset paper (400)")
    learn.add_argument("--mixed", action="store_true", help="bfloat16 in the largest product, "
                       "preset paper")  # fmt: skip
    learn.add_argument("--held-out", type=float, metavar="SHARE", help="for early stopping (0.05)")
    learn.add_argument("--norm", choices=NORMS, help="rows of another norm than 1: refuse, "
                       "divide, or leave (unit)")  # fmt: skip
    learn.add_argument("--seed", type=int, help="of the split and the start (0)")
    learn.add_argument("--checkpoint-every", type=int, default=25, metavar="STEPS", help="(25)")
    learn.add_argument("--fresh", action="store_true", help="forget an interrupted training")
    learn.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS,
                       help="print results and errors only")  # fmt: skip
    use = actions.add_parser("apply", help="statistics of new pairs", epilog=EPILOG,
                             formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    use.add_argument("adapter", metavar="DIR", help="folder of a trained adapter")
    _add_pairs(use)
    use.add_argument("--out", required=True, metavar="FILE", help=".parquet or .csv to write")
    use.add_argument("--joint", action="store_true", help="one latent for both modalities")
    use.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS,
                     help="print results and errors only")  # fmt: skip


def _add_pairs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pairs", nargs="?", metavar="PAIRS", help=f"{LAYOUTS}; train: or a config")
    parser.add_argument("--image", metavar="NPY", help="image embeddings [N, D]")
    parser.add_argument("--text", metavar="NPY", help="text embeddings [N, D]")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 … (cpu)")


def _run(args: argparse.Namespace) -> int:
    learn = args.action == "train"
    if learn and args.pairs and Path(args.pairs).suffix == ".toml":
        return _train_config(args)
    checks.extra("torch", "the GP adapter", "adapter")
    if learn and (args.out is None or args.run or args.set or args.redo):
        raise InputError(
            "--out names the adapter's folder; --run, --set and --redo go with a TOML file."
        )
    pairs = read_pairs(args.pairs, image=args.image, text=args.text, training=learn)
    return _train(args, pairs) if learn else _apply(args, pairs)


def _train_config(args: argparse.Namespace) -> int:
    """The stages pairs and train of a config: from its files to the adapter, or adapters."""
    from fusevlm.config import read_config, read_toml
    from fusevlm.pipeline.bench import read_bench
    from fusevlm.pipeline.train import MODEL, share_adapters

    given = [a for a in (*CHANGES, "out", "image", "text", "lr") if getattr(args, a) is not None]
    given += [a for a in ("ard", "mixed") if getattr(args, a)]
    given += ["device"] if args.device != "cpu" else []
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')} does not go with a TOML file, whose [adapter] says "
            f"it: use --set adapter.KEY=VALUE, and --run for the folder."
        )
    words = ["adapter", "train", args.pairs, *(["--run", args.run] if args.run else [])]
    words += [word for change in args.set for word in ("--set", change)]
    redo = args.redo or ("train" if args.fresh else None)
    codes: list[int] = []

    def bring(folder: Path, config: Config) -> None:
        if EXIT_INTERRUPTED in codes:
            return
        codes.append(
            bring_up_to_date(folder, config, command=words, quiet=args.quiet, to="train", redo=redo)
        )
        if codes[-1] != EXIT_INTERRUPTED:
            tell(f"adapter: {folder / 'train' / MODEL}")

    if "dataset" in read_toml(Path(args.pairs)):
        bench = read_bench(args.pairs, args.set)
        share_adapters(bench.places, run_folder(args.run, f"bench-{bench.name}"), bring)
    else:
        config = read_config(args.pairs, args.set)
        bring(run_folder(args.run, config.name), config)
    if not codes:
        raise InputError(f"{args.pairs} trains no adapter: no model has adapter = 'train'.")
    return max(codes)


CHANGES = {  # argument: option of the adapter
    "latent": "n_latent", "inducing": "n_inducing", "steps": "steps", "epochs": "epochs",
    "batch_size": "batch_size", "held_out": "held_out", "norm": "norm", "seed": "seed",
    "lambda1": "lambda1", "lambda2": "lambda2",
}  # fmt: skip


def _train(args: argparse.Namespace, pairs: dict[str, Any]) -> int:
    from fusevlm.priors.gp.adapter import GpAdapter
    from fusevlm.priors.gp.parallel import join_team, leave_team

    changes = {o: getattr(args, a) for a, o in CHANGES.items() if getattr(args, a) is not None}
    if args.lr is not None:
        changes |= {"lr": args.lr, "latent_lr": args.lr}
    if args.ard:
        changes["ard"] = True
    if args.mixed:
        changes["precision"] = "mixed"
    adapter = GpAdapter(args.preset, device=args.device, **changes)
    team = join_team()
    line = progress_line("step", quiet=args.quiet or team.rank != 0)

    def show(p: Progress) -> None:
        held = "" if p.held_out is None else f"  held-out {p.held_out:.4f}"
        line(p.step, p.n_steps, note=f"bound {p.bound:.4f}{held}")

    adapter.fit(
        pairs.get("image"),
        pairs.get("text"),
        folder=args.out,
        checkpoint_every=args.checkpoint_every,
        fresh=args.fresh,
        progress=show,
        say=say_unless(args.quiet) if team.size == 1 else None,
        team=team,
    )
    if team.rank == 0:
        if adapter.fitted.record.steps < adapter.options.steps and not args.quiet:
            tell(error=True)  # training ended early: the line has no end yet
        adapter.save(args.out)
        tell(_summary(adapter, args.out))
    leave_team(team)
    return 0


def _summary(adapter: GpAdapter, folder: str) -> str:
    r = adapter.fitted.record
    lines = [
        f"pairs {r.n_pairs}, held out {r.n_held_out}",
        f"steps {r.steps} in {r.seconds:.1f} s: {r.finished}",
        f"bound {r.objective[-1]:.10g} nat per pair and output (it began at {r.objective[0]:.6g})",
    ]
    if r.held_out:
        lines.append(f"held-out {max(r.held_out):.6g} at step {r.best_step}, which is kept")
    if r.kl is not None:
        lines.append(f"L_KL {r.kl:.6g} nat per pair (reported, weight {adapter.options.lambda2:g})")
    return "\n".join([*lines, f"adapter: {folder}"])


def _apply(args: argparse.Namespace, pairs: dict[str, Any]) -> int:
    from fusevlm.priors.gp.adapter import GpAdapter

    target = Path(args.out)
    if target.suffix not in (".parquet", ".csv"):
        raise InputError(f"--out is {target}; expected a .parquet or .csv file.")
    adapter = GpAdapter.load(args.adapter, device=args.device)
    found = adapter.statistics(pairs.get("image"), pairs.get("text"), joint=args.joint)
    columns: dict[str, list[Any]] = {name: values.tolist() for name, values in found.items()}
    if "query_id" in pairs:
        columns = {"query_id": pairs["query_id"], **columns}
    store.save_columns(target, columns)
    tell(f"{len(found[adapter.primary])} rows of {', '.join(found)}: {target}")
    return 0


VERBS = {"adapter": Verb(EPILOG, _add, _run)}
