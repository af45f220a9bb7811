"""What a run costs: prices from two sizes, against sleeps and sizes that are known."""

import re

import pytest
from tests.pipeline.synthetic_runs import config_of, toml_of, tree_of, write_tables

from fusevlm.cli import main
from fusevlm.errors import InputError
from fusevlm.pipeline import trial
from fusevlm.pipeline.cost import Gpu
from fusevlm.pipeline.run import STAGES
from fusevlm.pipeline.trial import ON_CPU, ON_GPU, SERVICE, Price, Spent, Trial, price_of

SLEEP = 0.02
SLOW = {"model": f"synthetic:d=24,seconds={SLEEP}"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("trial")
    write_tables(home, n_calibration=60, n_test=130)
    (home / "quick.toml").write_text(toml_of(tree_of(home)))
    return home


def test_the_clock_counts_the_sleep_of_a_query_and_the_cpu_does_not(home, tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "STAGES", ("data", "sample"))
    counts = (10, 40)
    _, few, some = (
        trial.spent_by(trial.sized(config_of(home, sample=SLOW), 30, n), tmp_path / f"{k}{n}")
        for k, n in enumerate((10, *counts))
    )
    slept = SLEEP * (30 + 40)  # other processes may add to it, and take nothing from it
    assert some["sample"].wall >= slept
    assert some["sample"].cpu < some["sample"].wall - slept / 2
    clock = price_of("sample", ON_GPU, few["sample"], some["sample"], counts)
    assert clock.total(40) == pytest.approx(some["sample"].wall)
    files = sum(p.stat().st_size for p in (tmp_path / "240" / "sample").rglob("*") if p.is_file())
    assert some["sample"].bytes == files


def test_a_straight_line_is_found():
    """5 s once and 0.25 s a query by the clock, 1 and 0.1 of the CPU; 100 bytes and 8 a query."""
    counts = (16, 64)
    few, some = (Spent(5 + 0.25 * n, 1 + 0.1 * n, 100 + 8 * n) for n in counts)
    for where, once, each in ((ON_CPU, 1, 0.1), (ON_GPU, 5, 0.25), (SERVICE, 5, 0.25)):
        found = price_of("sample", where, few, some, counts)
        assert (found.once, found.seconds) == pytest.approx((once, each))
        assert (found.bytes_once, found.bytes) == pytest.approx((100, 8))
        assert found.total(1000) == pytest.approx(once + 1000 * each)
    fixed = price_of("train", ON_GPU, few, some, counts)
    assert (fixed.seconds, fixed.bytes) == (0, 0)
    assert fixed.once == pytest.approx(5 + 0.25 * 64)


def test_a_stage_that_was_quicker_with_more_queries_costs_nothing_more():
    found = price_of("data", ON_CPU, Spent(2, 2, 90), Spent(1, 1, 80), (16, 64))
    assert (found.seconds, found.once, found.bytes, found.bytes_once) == (0, 1, 0, 80)


def test_a_plan_by_hand(home):
    """Sampling 36 ms of a GPU and 100 bytes; scoring 3.6 ms of a CPU; one process at the end."""
    prices = (
        Price("sample", ON_GPU, 10.0, 0.036, 1000.0, 100.0),
        Price("score", ON_CPU, 0.0, 0.0036, 0.0, 20.0),
        Price("evaluate", ON_CPU, 0.0, 0.00036, 0.0, 3.0),
    )
    found = Trial(prices, 120, (64, 256), 1.0, 30.0)
    said = "\n".join(trial.plan(found, config_of(home), 1_000_000, 4, Gpu()))
    assert "1,000,000 test queries: 11.1 h on one worker of this machine, 123 MB on disk" in said
    assert "sample: 36 GPU-ms a query (measured), 10 GPU-hours, 2.5 h on 4 GPUs" in said
    assert "a day of them does 9.6 million" in said
    assert "1 h of one core that workers share (0.25 h on 4), and 0.1 h that one process" in said
    assert "calibration has 120 queries at any size" in said
    assert "states of test queries are reduced" in said  # sample.states is auto


def test_what_bounds_a_stage(home):
    config = config_of(home, sample={"model": "openai:m@http://localhost:1/v1"})
    assert trial.where("sample", config) == SERVICE
    config = config_of(home, sample={"device": "cuda"}, embed={"towers": "embedded"})
    assert trial.where("sample", config) == ON_GPU
    assert trial.where("embed", config) == ON_CPU
    assert trial.where("score", config) == ON_CPU


def test_a_trial_of_too_few_queries_is_refused(home, tmp_path):
    write_tables(tmp_path / "few", n_calibration=60, n_test=12)
    with pytest.raises(InputError, match=r"hold 12 test queries; a trial needs 64.*--trial 3"):
        trial.measure(config_of(tmp_path / "few"), tmp_path / "runs", fewest=16)
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["asked"]  # no model was asked


def test_the_command_plans_and_checks_itself(home, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trial, "STAGES", list(STAGES)[: list(STAGES).index("calibrate")])
    kept = tmp_path / "kept"
    words = ["cost", str(home / "quick.toml"), "--trial", "16", "--queries", "100000000",
             "--gpus", "64", "--check", "2", "--out", str(kept)]  # fmt: skip
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "measured with 60 calibration and 16 and 64 test queries" in said
    assert "100,000,000 test queries:" in said
    assert "64 workers take a share of the queries each" in said
    assert "128 test queries, 2 times the trial:" in said
    off = re.search(r"together +([+-]\d+) %.*? ([\d,]+) +([\d,]+)$", said, re.MULTILINE)
    planned, took = (float(text.replace(",", "")) for text in off.groups()[1:])
    assert planned == pytest.approx(took, rel=0.25)  # bytes; seconds are too few here to compare
    assert {p.name for p in (tmp_path / "kept").iterdir()} == {
        "asked",
        "first",
        "few",
        "some",
        "check",
    }


def test_without_a_trial_nothing_is_run(home, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trial, "measure", None)
    assert main(["cost", str(home / "quick.toml"), "--no-trial"]) == 0
    assert "queries" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--queries", "--gpus", "--trial", "--check"])
@pytest.mark.parametrize("value", ["0", "-3"])
def test_numbers_below_one_are_refused(home, capsys, flag, value):
    assert main(["cost", str(home / "quick.toml"), flag, value]) == 1
    assert f"{flag} is {value}; expected a whole number of at least 1" in capsys.readouterr().err


def test_a_config_that_is_not_there(capsys):
    assert main(["cost", "nowhere.toml"]) == 1
    assert "nowhere.toml" in capsys.readouterr().err
