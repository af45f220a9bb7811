"""Wrong versions of the package, each of which a named test must catch.

    python -m tests.mutants                 all of them
    python -m tests.mutants store "ψ for"   those of a room, or whose name begins so
    python -m tests.mutants --list          what they are

A mutant (``tests/mutant_list.py``) is one change to one function in a copy of the package; its test
runs against the copy and must fail there, and pass against the unchanged one. Code is compared as
syntax trees, so that its formatting does not matter.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fusevlm"
# loaded once, by the process that those of the tests are forked from; nothing that loads fusevlm
HEAVY = [
    "numpy", "scipy.stats", "scipy.optimize", "sklearn.metrics", "pyarrow.parquet", "pandas",
    "torch", "torch.fx", "transformers.generation", "transformers.models.llava.modeling_llava",
    "transformers.models.clip.modeling_clip", "PIL.Image", "hypothesis.extra.numpy", "pytest",
]  # fmt: skip
PASSED, FAILED = 100, 101  # exit codes; neither is that of a crash
SECONDS = 600  # for the tests of one mutant, or for all of them once


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("only", nargs="*", help="rooms, or how names begin")
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if not args.only or m.name.startswith(tuple(args.only)) or
              m.room in args.only]  # fmt: skip
    if args.list:
        for room, mutants in groupby(chosen, key=lambda m: m.room):
            print(room)
            for mutant in mutants:
                print(f"  {mutant.name}: {mutant.place}, caught by {mutant.test}")
        return 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        survivors = hunt(Path(folder), chosen)
    seconds = time.monotonic() - start
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught in {seconds:.0f} s")
    return 1 if survivors else 0


def hunt(folder: Path, mutants: Sequence[Mutant] = MUTANTS) -> list[Mutant]:
    """Run every mutant's test against its copy; return those that survived."""
    copy = folder / "fusevlm"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code, said = run_tests(folder, sorted({mutant.test for mutant in mutants}))
    if code != PASSED:
        raise SystemExit(f"{said}\nthe unchanged package fails its tests; nothing can be learnt")
    survivors = []
    for mutant in mutants:
        start = time.monotonic()
        target = copy / mutant.file
        original = target.read_text()
        target.write_text(mutated(mutant, original))
        code, said = run_tests(folder, [mutant.test])
        target.write_text(original)
        # a name that does not exist, or a fixture that breaks, proves nothing
        caught = code == FAILED and "\nFAILED " in said and "NameError" not in said
        verdict = "caught" if caught else "SURVIVED"
        taken = time.monotonic() - start
        print(f"{verdict:9s}{taken:4.1f} s  {mutant.name}  ({mutant.test})", flush=True)
        if not caught:
            survivors.append(mutant)
    return survivors


def mutated(mutant: Mutant, source: str) -> str:
    """The source of the mutant's file with the change made, which must be possible just once."""
    tree = ast.parse(source)
    right, wrong = ast.parse(mutant.right).body, ast.parse(mutant.wrong).body
    match right, wrong:
        case [ast.Expr(one)], [ast.Expr(other)]:  # also inside of other expressions
            right, wrong = [one], [other]
    found = list(_sites(_definition(tree, mutant.function), right))
    if len(found) != 1:
        raise LookupError(
            f"{mutant.name}: {mutant.place} holds {mutant.right!r} {len(found)} times; "
            f"expected once."
        )
    ((parent, field, at),) = found
    held = getattr(parent, field)
    if isinstance(held, list):
        held[at : at + len(right)] = wrong
    else:
        setattr(parent, field, *wrong)
    return ast.unparse(tree)


def _definition(tree: Any, path: str) -> ast.AST:
    """The function, class or constant of this name; ``Class.method`` is inside of another."""
    for name in path.split("."):
        (tree,) = [node for node in tree.body if name in _names(node)]
    return tree


def _names(node: Any) -> list[str]:
    targets = getattr(node, "targets", [getattr(node, "target", node)])
    return [getattr(one, "id", getattr(one, "name", "")) for one in targets]


def _sites(tree: ast.AST, wanted: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, str, int]]:
    """Where the wanted nodes stand in a row: their parent, its field, and the place in that."""
    dumps = [ast.dump(node) for node in wanted]
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            held = value if isinstance(value, list) else [value]
            own = [ast.dump(node) if isinstance(node, ast.AST) else "" for node in held]
            for at in range(len(own) - len(dumps) + 1):
                if own[at : at + len(dumps)] == dumps:
                    yield parent, field, at


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """PASSED, FAILED or another exit code, and what pytest said; the package is in ``folder``."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(HEAVY)
    log = folder / "log"
    process = context.Process(target=_run_tests, args=(folder, tests, log))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, log.read_text()


def _run_tests(folder: Path, tests: Sequence[str], log: Path) -> None:
    sys.path.insert(0, str(folder))  # before where fusevlm is installed
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ.pop("FUSEVLM_EMBEDDED", None)  # the copy has its own weights
    sys.dont_write_bytecode = True
    gc.freeze()  # what the parent loaded need not be searched
    os.chdir(ROOT)
    with log.open("w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        import pytest
        from hypothesis import Phase, settings

        from fusevlm import embedded

        phases = [Phase.explicit, Phase.generate]  # any example will do, and none is remembered
        settings.register_profile("hunt", phases=phases, database=None)
        settings.load_profile("hunt")
        options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:anyio"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are loaded already
        code = pytest.main([*options, *(f"tests/{test}" for test in tests)])
        loaded = {m.__file__ for name, m in sys.modules.items() if name.startswith("fusevlm")}
        for used in (*loaded, embedded.weights_folder()):
            if folder not in Path(used).parents:
                raise SystemExit(f"{used} was used, which is not in the copy, {folder}")
    sys.exit(PASSED + code)


if __name__ == "__main__":
    sys.exit(main())
