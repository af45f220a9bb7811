"""Runs of the synthetic model, which need no torch: tables, a config, and how runs are compared."""

import json

from fusevlm.config import make_config
from fusevlm.testing.synthetic import truth

NOT_RESULTS = ("stage.json", "seconds.json", "run.json", ".lock", "ray.log", "index.html",
               "server.json", "place.json")  # fmt: skip


def write_tables(home, n_calibration=60, n_test=70):
    """Tables of questions with their right answers; two questions a unit."""
    home.mkdir(parents=True, exist_ok=True)
    numbers = {"calibration": range(n_calibration),
               "test": range(n_calibration, n_calibration + n_test)}  # fmt: skip
    for split, own in numbers.items():
        rows = []
        for k in own:
            question = f"what is number {k} like?"
            kind = "odd" if k % 3 else "even"
            rows.append({"id": str(k), "question": question, "references": [truth(question)],
                         "pair": f"{split} {k // 2}", "kind": kind})  # fmt: skip
        (home / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def tree_of(home, **sections):
    """The config of a run on these tables: every stage has something to do."""
    tree = {
        "name": "synthetic",
        "data": {"source": "files", "calibration": str(home / "calibration.jsonl"),
                 "test": str(home / "test.jsonl"), "unit": "pair"},
        "sample": {"model": "synthetic:d=24", "n": 5, "batch": 8},
        "embed": {"towers": "none"},
        "adapter": {"source": "none", "statistics": []},
        "score": {"baselines": ["g_nll", "umpire", "eigenscore", "accuracy_probe", "distinct"]},
        "calibrate": {"methods": ["practical", "evidence-only", "g_nll", "umpire"]},
        "evaluate": {"bootstrap": 20, "slices": ["kind"], "risk": 0.2},
        "report": {"figures": ["roc"], "pdf": False, "examples": 4},
    }  # fmt: skip
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return tree


def config_of(home, **sections):
    return make_config(tree_of(home, **sections), "test")


def toml_of(tree):
    """A config as a TOML file has it."""
    lines = [f"name = {json.dumps(tree['name'])}"]
    for section, values in tree.items():
        if isinstance(values, dict):
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def results(run, stages=None):
    """Every file of a run that is a result, by name."""
    found = {p.relative_to(run).as_posix(): p for p in sorted(run.rglob("*")) if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items()
            if path.name not in NOT_RESULTS and not name.startswith("cache/")
            and (stages is None or name.partition("/")[0] in stages)}  # fmt: skip


def differing(one, two, stages=None):
    """Names of files that are not the same in both runs."""
    a, b = results(one, stages), results(two, stages)
    return sorted({*a} ^ {*b} | {name for name in {*a} & {*b} if a[name] != b[name]})
