"""The figures of trained embedded models as Markdown: ``python -m factory.card DIR …``.

One column for each folder that ``factory.train`` has filled; a mean is followed by its number of
queries.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from factory.train import METRICS
from fusevlm.errors import ArtefactError, FuseError

Metrics = Mapping[str, Any]
Line = tuple[str, str, str]  # table, row, value


def lines(metrics: Metrics) -> Iterator[Line]:
    """All figures of one run in reading order."""
    yield from _accuracies("VLM, dev, every view", metrics["vlm_dev_every_view"])
    yield from _accuracies("VLM, calibration queries", metrics["vlm_calibration"])
    yield from _accuracies("VLM, calibration images, clean", metrics["vlm_calibration_clean"])
    for key, title in (("severity", "in distribution, severity"), ("clean_condition", "clean")):
        yield from _groups("Distinct answers among 10 samples", title, metrics["distinct"][key])
    for level, share in metrics["zero_shot_24"].items():
        yield "Dual encoder, 24-way zero-shot", f"severity {level}", f"{share:.3f}"
    for name, found in metrics["adapter_by_severity"].items():
        yield from _statistic(name, found)
    made = metrics["question_generator"]
    title = "Question generator: the asked-for answer returns"
    yield title, "all", f"{made['rate']:.3f} ({made['n']})"
    yield from _groups(title, "", made["kind"])
    for name, size in metrics["bytes"].items():
        yield "Size and time", f"{name}, MB", f"{size / 1e6:.2f}"
    yield "Size and time", "all, MB", f"{sum(metrics['bytes'].values()) / 1e6:.2f}"
    for name, stage in metrics["stages"].items():
        yield "Size and time", f"{name}, seconds", f"{stage['seconds']:.0f}"
    yield "Size and time", "measuring, seconds", f"{metrics['seconds_measuring']:.0f}"


def _accuracies(title: str, found: Metrics) -> Iterator[Line]:
    plain = found["clean_in_distribution"], found["n_clean_in_distribution"]
    yield title, "clean, in distribution", f"{plain[0]:.3f} ({plain[1]})"
    yield title, "all", f"{found['all']:.3f} ({found['n']})"
    for key in ("severity", "corruption", "answer_type", "source", "kind", "condition"):
        if len(found[key]) > 1:
            yield from _groups(title, key.replace("_", " "), found[key])
    if len(found["severity"]) > 1:
        yield from _groups(title, "clean", found["clean_by_kind"])
        if len(found["clean_condition"]) > 1:
            yield from _groups(title, "clean", found["clean_condition"])


def _groups(title: str, of: str, groups: Mapping[str, Metrics]) -> Iterator[Line]:
    for name, part in groups.items():
        yield title, f"{of} {name}".strip(), f"{part['mean']:.3f} ({part['n']})"


def _statistic(name: str, found: Metrics) -> Iterator[Line]:
    title = f"Adapter, mean {name} on dev"
    for level, value in found["by_severity"].items():
        yield title, f"severity {level}", f"{value:.3f}"
    for key, label in (("spearman_of_means", "level means"), ("spearman", "queries")):
        rank = found[key]
        yield title, f"Spearman, {label}", "constant" if rank is None else f"{rank:.3f}"
    for corruption, levels in found.items():
        if isinstance(levels, dict) and corruption != "by_severity":
            yield (
                title,
                f"{corruption}, severity 0–5",
                " ".join(f"{v:.2f}" for v in levels.values()),
            )


def card(runs: Mapping[str, Metrics]) -> str:
    """Markdown tables of one or several runs side by side."""
    columns = {name: {line[:2]: line[2] for line in lines(m)} for name, m in runs.items()}
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    out: list[str] = []
    for title in dict.fromkeys(title for title, _ in keys):
        out += [
            f"### {title}",
            "",
            f"| | {' | '.join(columns)} |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for key in keys:
            if key[0] == title:
                values = [column.get(key, "–") for column in columns.values()]
                out.append(f"| {key[1]} | {' | '.join(values)} |")
        out.append("")
    return "\n".join(out)


def read(folder: Path) -> Metrics:
    """The metrics of a finished run."""
    try:
        found: Metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"no metrics in {folder}: {error}. Finish it with "
            f'"python -m factory.train --out {folder}".'
        ) from error
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m factory.card",
        description="Print the figures of trained embedded models as Markdown.",
        epilog="example: python -m factory.card runs/embedded-0 runs/embedded-1",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="filled by train")
    given = parser.parse_args(arguments)
    try:
        text = card({str(folder): read(folder) for folder in given.folders})
    except FuseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
