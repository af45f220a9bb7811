"""Every reader of what comes from outside, on thousands of inputs that are nearly good.

Each input is read, or refused by an error of fusevlm's own, within seconds; anything else fails,
with the smallest such input there is. Seeds are fixed: the same inputs every time.
``FUSEVLM_FUZZ=20`` tries twenty times as many, and others.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.safety.prepared import Prepared
from tests.safety.targets import CORPUS, TARGETS, tried

pytestmark = pytest.mark.slow
LEAST = 20_000  # inputs in all
MORE = int(os.environ.get("FUSEVLM_FUZZ", "1"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return Prepared(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="module")
def counts():
    """Different inputs, and how many of them were fine, by target."""
    return {}


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_read_or_refused(name, prepared, counts, tmp_path):
    target = TARGETS[name]
    _, ways, read = target.make(prepared, tmp_path)
    seen, good = set(), []
    kept = Path(tmp_path) / f"{name}.input"

    @seed(MORE)
    @settings(
        max_examples=target.most * MORE, deadline=None, database=None, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )  # fmt: skip
    @given(ways)
    def fuzz(payload):
        seen.add(hash(payload))
        kept.write_bytes(payload)  # of a shrunk input, the last one that is tried
        good.append(tried(read, payload))

    try:
        fuzz()
    except AssertionError as error:
        advice = f"Mend what reads it, and keep it: cp {kept} {CORPUS / name}/"
        raise AssertionError(f"{error}\n{advice}") from error
    counts[name] = (len(seen), sum(good))


def test_enough_was_tried(counts, tally):
    if len(counts) < len(TARGETS):
        pytest.skip("only some targets were tried, or some failed")
    inputs, fine = (sum(one[k] for one in counts.values()) for k in (0, 1))
    assert inputs >= LEAST
    tally(
        f"{inputs} fuzzed inputs, {len(TARGETS)} targets ({fine} were read, the others refused): "
        f"0 untyped errors, 0 hangs"
    )
