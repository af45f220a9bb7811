"""What a run costs, measured by a short trial on this machine and carried on to any size.

Two runs of the same config with the same calibration queries, and few and some more test queries:
what differs is what the further test queries cost, in seconds and bytes of each stage; the rest is
there once. A run before them loads what is loaded once a process, and is not counted.

CPU seconds are those of this process, whatever else the machine does; on a quiet machine with one
thread they are what a clock shows. Of a stage on a GPU the clock counts, and of a service too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fusevlm.config import used_devices
from fusevlm.errors import InputError
from fusevlm.models.devices import CPU
from fusevlm.models.registry import behind_server
from fusevlm.pipeline.cost import Gpu, estimate
from fusevlm.pipeline.engine import STAGES as OF_PARTS
from fusevlm.pipeline.run import STAGES, idle, run_stages
from fusevlm.settings import TRAIN, Config
from fusevlm.store.files import size_of
from fusevlm.store.runs import read_manifest

FEWEST = 64  # test queries of the smaller run; the larger has four times as many
CALIBRATION = 120  # calibration queries of a trial, at most
ONCE = ("pairs", "train")  # stages that do not grow with the queries
MEASURED, ARITHMETIC = "measured", "by arithmetic"
ON_GPU, ON_CPU, SERVICE = "GPU", "CPU", "service"


@dataclass(frozen=True)
class Spent:
    """What a stage took in one run: seconds by the clock and of the CPU, bytes on disk."""

    wall: float
    cpu: float
    bytes: int


@dataclass(frozen=True)
class Price:
    """What a stage costs: once, and for each test query.

    where  GPU, CPU or service: by what it is bound, and which seconds count
    """

    stage: str
    where: str
    once: float  # seconds
    seconds: float  # a query
    bytes_once: float
    bytes: float  # a query

    def total(self, queries: float) -> float:
        """Seconds for so many test queries, one worker."""
        return self.once + self.seconds * queries


@dataclass(frozen=True)
class Trial:
    """What was measured, and of how many queries."""

    prices: tuple[Price, ...]
    n_calibration: int
    n_test: tuple[int, int]
    start: float  # seconds to load what is loaded once a process
    seconds: float  # that the trial itself took

    @property
    def n_queries(self) -> int:
        """Of the larger run."""
        return self.n_calibration + self.n_test[1]


def measure(
    config: Config,
    folder: Path,
    *,
    fewest: int = FEWEST,
    say: Callable[[str], None] = lambda text: None,
) -> Trial:
    """Run the trial in ``folder``, below which it makes its runs."""
    begun = time.monotonic()
    if config.data.n_test and config.data.n_test < 2 * fewest:
        fewest = max(8, config.data.n_test // 4)
    sizes = (fewest, 4 * fewest)
    known = min(config.data.n_calibration or CALIBRATION, CALIBRATION)
    say(f"trial: {known} calibration queries, {sizes[0]} and {sizes[1]} test queries")
    run_stages(folder / "asked", sized(config, known, sizes[1]), only="data")
    there = counted(folder / "asked", "test")
    if there < sizes[1]:
        raise InputError(
            f"the tables hold {there} test queries; a trial needs {sizes[1]}. Make it smaller: "
            f"--trial {max(2, there // 4)}."
        )
    first = spent_by(sized(config, known, sizes[0]), folder / "first")
    few = spent_by(sized(config, known, sizes[0]), folder / "few")
    some = spent_by(sized(config, known, sizes[1]), folder / "some")
    counts = [counted(folder / name, "test") for name in ("few", "some")]
    prices = [
        price_of(stage, where(stage, config), few[stage], some[stage], counts) for stage in some
    ]
    start = sum(first[s].wall - few[s].wall for s in first)
    return Trial(
        tuple(prices),
        counted(folder / "some", "calibration"),
        (counts[0], counts[1]),
        max(0.0, start),
        time.monotonic() - begun,
    )


def sized(config: Config, n_calibration: int, n_test: int) -> Config:
    """The config with so many queries; states as in a long run."""
    data = replace(config.data, n_calibration=n_calibration, n_test=n_test)
    sample = config.sample
    if sample.states == "auto" and not sample.gram:
        sample = replace(sample, states="reduced")
    return replace(config, data=data, sample=sample)


def spent_by(config: Config, folder: Path) -> dict[str, Spent]:
    """Make a run stage by stage; what each took."""
    found = {}
    for stage in STAGES:
        if idle(stage, config):
            continue
        wall, cpu = time.monotonic(), cpu_seconds()
        run_stages(folder, config, only=stage)
        spent = (time.monotonic() - wall, cpu_seconds() - cpu)
        found[stage] = Spent(*spent, size_of(folder / stage))
    return found


def cpu_seconds() -> float:
    """Of this process and those it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def counted(run: Path, split: str) -> int:
    """Queries of a run, calibration or test."""
    manifest = read_manifest(run, "data")
    return 0 if manifest is None else manifest.counts.get(split, 0)


def where(stage: str, config: Config) -> str:
    """By what a stage is bound."""
    devices = used_devices(config)
    if stage == "sample" and behind_server(config.sample.model):
        return SERVICE
    own = {
        "sample": devices["sample.device"] if not config.sample.device_map else "cuda",
        "embed": devices.get("embed.device", CPU),
        "pairs": devices.get("embed.device", CPU),
        "adapter": devices.get("adapter.device", CPU),
        "train": devices.get("adapter.device", CPU),
        "semantics": devices.get("semantics.device", CPU),
    }
    return ON_CPU if own.get(stage, CPU) == CPU else ON_GPU


def price_of(stage: str, where: str, few: Spent, some: Spent, counts: Sequence[int]) -> Price:
    """Seconds and bytes once and for each test query, from runs of two sizes."""
    more = counts[1] - counts[0]
    one, two = (own.cpu if where == ON_CPU else own.wall for own in (few, some))
    seconds = 0.0 if stage in ONCE else max(0.0, (two - one) / more)
    size = 0.0 if stage in ONCE else max(0.0, (some.bytes - few.bytes) / more)
    return Price(
        stage,
        where,
        max(0.0, two - seconds * counts[1]),
        seconds,
        max(0.0, some.bytes - size * counts[1]),
        size,
    )


def arithmetic(config: Config, gpu: Gpu) -> dict[str, float]:
    """GPU seconds a query by the formulas of the dry run, where the models' sizes are known."""
    found = estimate(config, gpu)
    if not found.queries:
        return {}
    kinds = {"sampling": "sample", "towers": "embed"}
    seconds: dict[str, float] = {}
    for work in found.work:
        if work.hours is not None:
            stage = kinds.get(work.what, "semantics")
            seconds[stage] = seconds.get(stage, 0.0) + 3600 * work.hours / found.queries
    return seconds


def plan(
    trial: Trial, config: Config, queries: int, gpus: int, gpu: Gpu | None = None
) -> list[str]:
    """The trial carried on to so many test queries, with all that is assumed."""
    lines = [
        f"measured with {trial.n_calibration} calibration and {trial.n_test[0]} and "
        f"{trial.n_test[1]} test queries, in {trial.seconds:.0f} s:",
        _row("stage", "bound by", "once, s", "ms a query", "bytes a query", "h here"),
    ]
    for price in trial.prices:
        lines.append(
            _row(
                price.stage,
                price.where,
                f"{price.once:.1f}",
                f"{1000 * price.seconds:.3g}",
                f"{price.bytes:,.0f}",
                f"{price.total(queries) / 3600:,.3g}",
            )
        )
    total = sum(price.total(queries) for price in trial.prices)
    size = sum(price.bytes_once + price.bytes * queries for price in trial.prices)
    each = sum(price.bytes for price in trial.prices)
    lines.append(_row("together", "", "", "", f"{each:,.0f}", f"{total / 3600:,.3g}"))
    lines += ["", f"{queries:,} test queries: {total / 3600:,.3g} h on one worker of this machine, "
              f"{_bytes(size)} on disk"]  # fmt: skip
    lines += _on_gpus(trial, config, queries, gpus, gpu or Gpu())
    return [*lines, "", *assumptions(trial, config, gpus)]


def _on_gpus(trial: Trial, config: Config, queries: int, gpus: int, gpu: Gpu) -> list[str]:
    """GPU-hours, and how long so many GPUs take: measured, or by arithmetic."""
    measured = {p.stage: p.seconds for p in trial.prices if p.where == ON_GPU}
    counted = {} if measured else arithmetic(config, gpu)
    lines = []
    for stage, seconds in (measured or counted).items():
        how = MEASURED if measured else ARITHMETIC
        hours = seconds * queries / 3600
        lines.append(
            f"  {stage}: {1000 * seconds:.3g} GPU-ms a query ({how}), {hours:,.3g} GPU-hours, "
            f"{hours / gpus:,.3g} h on {gpus} GPU{'s' * (gpus > 1)}; a day of them does "
            f"{_count(gpus * 86400 / seconds) if seconds else 'all'}"
        )
    shared = [p for p in trial.prices if p.stage in OF_PARTS and p.where == ON_CPU]
    alone = [p for p in trial.prices if p.stage not in OF_PARTS]
    over = sum(p.total(queries) for p in shared) / 3600
    rest = sum(p.total(queries) for p in alone) / 3600
    lines.append(
        f"  on CPUs: {over:,.3g} h of one core that workers share ({over / gpus:,.3g} h on "
        f"{gpus}), and {rest:,.3g} h that one process takes at the end"
    )
    return lines


def assumptions(trial: Trial, config: Config, gpus: int) -> list[str]:
    """All that the plan takes for granted."""
    lines = [
        "assumed:",
        "  further queries cost what those of the trial did: lengths, pictures, answers are alike",
        f"  calibration has {trial.n_calibration} queries at any size; with more, what is there "
        f"once grows",
        f"  {gpus} workers take a share of the queries each: parts are independent, and neither "
        f"disk nor network nor a service holds them up",
        "  seconds on CPUs are of one core with nothing else to do; of GPUs and services, by the "
        "clock",
    ]
    if config.sample.states == "auto":
        lines.append("  states of test queries are reduced, as in any run of that size")
    if config.adapter.source == TRAIN:
        lines.append("  pairs and training of the adapter are there once, whatever the queries")
    return lines


def check(trial: Trial, config: Config, folder: Path, times: int) -> list[str]:
    """A run of so many times the trial, and how far the plan was off: per stage and together."""
    wanted = times * trial.n_test[1]
    spent = spent_by(sized(config, trial.n_calibration, wanted), folder / "check")
    count = counted(folder / "check", "test")
    lines = [f"{count} test queries, {count / trial.n_test[1]:.3g} times the trial:"]
    lines.append(_row("stage", "", "planned, s", "measured, s", "planned, bytes", "measured"))
    sums = [0.0, 0.0, 0.0, 0.0]
    for price in trial.prices:
        own = spent[price.stage]
        planned, took = price.total(count), own.cpu if price.where == ON_CPU else own.wall
        size = price.bytes_once + price.bytes * count
        for k, value in enumerate((planned, took, size, float(own.bytes))):
            sums[k] += value
        lines.append(_row(price.stage, _off(planned, took), f"{planned:.1f}", f"{took:.1f}",
                          f"{size:,.0f}", f"{own.bytes:,}"))  # fmt: skip
    lines.append(_row("together", _off(sums[0], sums[1]), f"{sums[0]:.1f}", f"{sums[1]:.1f}",
                      f"{sums[2]:,.0f}", f"{sums[3]:,.0f}"))  # fmt: skip
    return lines


def _off(planned: float, took: float) -> str:
    return f"{100 * (planned / took - 1):+.0f} %" if took else "–"


def _row(*cells: str) -> str:
    widths = (10, 9, 11, 12, 16, 14)
    first, second, *rest = cells
    right = (f"{cell:>{width}}" for cell, width in zip(rest, widths[2:], strict=True))
    return f"  {first:<{widths[0]}} {second:<{widths[1]}}{''.join(right)}"


def _bytes(size: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.3g} {unit}"
    return f"{size:,.0f} bytes"


def _count(queries: float) -> str:
    return f"{queries / 1e6:,.3g} million" if queries >= 1e6 else f"{queries:,.0f}"


def as_rows(trial: Trial) -> list[Mapping[str, object]]:
    """The prices as plain data."""
    return [vars(price) for price in trial.prices]
