"""One finished small run for all suites of this folder, and what they counted at the end."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.safety.children import run_child
from tests.safety.small import prepare, results

from fusevlm.pipeline.run import STAGES
from fusevlm.store.runs import read_manifest


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: how to make it, what it found, what it did to files and when."""

    config: Path
    run: Path
    results: dict[str, bytes]
    events: list[str]
    seconds: dict[str, float]

    @property
    def picture(self) -> Path:
        return self.config.parent / "pairs" / "0.png"

    def words(self, run: Path, *more: str) -> list[str]:
        return ["run", str(self.config), "--run", str(run), "--quiet", *more]

    def within(self, stage: str) -> int:
        """How many events were in a stage."""
        return sum(f" /{stage}/" in event for event in self.events)


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Whole:
    home = tmp_path_factory.mktemp("whole")
    config, run = prepare(home), home / "run"
    ended = run_child(["run", str(config), "--run", str(run), "--quiet"], run)
    assert ended.code == 0, ended.said
    seconds = {name: found.seconds for name in STAGES if (found := read_manifest(run, name))}
    assert set(seconds) == set(STAGES)
    return Whole(config, run, results(run), ended.events, seconds)


@pytest.fixture
def tally(record_property):
    """Say what was counted; it is shown at the end of the session."""
    return lambda line: record_property("tally", line)


def pytest_terminal_summary(terminalreporter) -> None:
    lines = [
        line
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, line in report.user_properties
        if name == "tally"
    ]
    if lines:
        terminalreporter.section("what was counted")
        for line in lines:
            terminalreporter.write_line(line)
