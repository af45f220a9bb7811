"""The page of a run, opened from disk in a real browser, against the run's own numbers."""

import csv
import json
import time

import numpy as np
import pytest
from tests.browser.conftest import serious

from fusevlm.cli import main
from fusevlm.pipeline.evaluate import read_predictions, read_results

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory, browser):
    """A small demo: real models, real pictures."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    assert main(["demo", "--limit", "400", "--out", str(folder), "--quiet"]) in (0, 3)
    return folder


@pytest.fixture(scope="module")
def facts(run):
    return read_results(run), read_predictions(run)


def url(run):
    return (run / "report" / "index.html").as_uri()


def test_it_opens_quickly_and_alone(run, opened):
    start = time.monotonic()
    with opened(url(run)) as page:
        assert time.monotonic() - start < 30  # under 2 s on a quiet machine
        assert page.title() == "demo – fusevlm"
        assert page.locator("figure svg[role=img]").count() >= 8
        assert serious(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_readable_on_a_phone_and_in_the_dark(run, opened, theme):
    with opened(url(run), viewport={"width": 390, "height": 800}, color_scheme=theme) as page:
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 1  # nothing sticks out
        assert serious(page) == []


def move(page, at):
    page.evaluate(
        """(at) => { const s = document.getElementById("risk"); s.value = at;
        s.dispatchEvent(new Event("input")); }""",
        at,
    )


def test_the_slider_says_what_the_run_measured(run, facts, opened):
    """Every method and every risk: counts as the evaluation has them."""
    results, table = facts
    with opened(url(run)) as page:
        checked = 0
        for method, rows in results["risks"].items():
            page.select_option("#method", method)
            for at, row in enumerate(rows):
                move(page, at)
                told = page.inner_text("#verdict")
                if row["threshold"] is None:
                    assert "nothing can be certified" in told
                else:
                    wrong = round(row["answered"] * row["risk"]) if row["answered"] else 0
                    assert f"{row['answered']} of {len(table['wrong'])} test queries" in told
                    assert f"Of those answers {wrong} are wrong" in told
                    checked += 1
        assert checked > 20


def test_the_slider_works_by_keyboard(run, facts, opened):
    with opened(url(run)) as page:
        before = page.inner_text("#risk-value")
        page.focus("#risk")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#risk-value") != before


def cards(page):
    return [card.get_attribute("data-query") for card in page.locator("article.query").all()]


def test_the_gallery_sorts_and_filters(run, facts, opened):
    _, table = facts
    ids, wrong = table["query_id"], np.array(table["wrong"])
    u = np.array(table["practical.u"])
    order = np.argsort(u, kind="stable")
    with opened(url(run)) as page:
        assert cards(page) == [ids[i] for i in order[:24]]
        page.click("#confident")
        assert cards(page) == [ids[i] for i in order if wrong[i]][:24]
        assert page.inner_text("#count") == f"{wrong.sum()} of {len(ids)} queries"
        page.click("#confident")
        page.select_option("#show", "wrong")
        page.select_option("#sort", "unsure")
        assert cards(page) == [ids[i] for i in order[::-1] if wrong[i]][:24]
        page.select_option("#show", "")
        page.select_option("#sort", "sure")
        page.fill("#words", "color")
        data = json.loads(page.inner_text("#data") or page.locator("#data").text_content())
        own = [k for k in range(len(ids)) if "color" in
               f"{data['question'][k]} {data['answer'][k]}".lower()]  # fmt: skip
        assert page.inner_text("#count") == f"{len(own)} of {len(ids)} queries"
        page.fill("#words", "")
        page.click("#next")
        assert cards(page) == [ids[i] for i in order[24:48]]
        first = page.locator("article.query").first
        first.locator("summary").click()
        first.locator("details svg[role=img]").wait_for()


def test_a_card_says_what_the_run_knows(run, facts, opened):
    _, table = facts
    place = {name: k for k, name in enumerate(table["query_id"])}
    with opened(url(run)) as page:
        page.select_option("#sort", "unsure")
        for card in page.locator("article.query").all()[:6]:
            k = place[card.get_attribute("data-query")]
            text = card.inner_text()
            assert f"P(wrong) {table['practical.p_wrong'][k]:.2f}" in text
            assert table["practical.why"][k] in text
            assert ("wrong" if table["wrong"][k] else "right") in text
            for bar in ("aleatoric", "epistemic", "competence"):
                value = table.get(f"practical.bar_{bar}", [None] * len(place))[k]
                if value is not None:
                    assert bar in text
            assert card.locator("img").evaluate("i => i.naturalWidth") > 0


def test_the_numbers_of_a_chart_can_be_kept(run, facts, opened, tmp_path):
    results, _ = facts
    with opened(url(run)) as page:
        with page.expect_download() as waited:
            page.locator('figure[data-chart="kept"] button', has_text="CSV").click()
        waited.value.save_as(tmp_path / "kept.csv")
    with (tmp_path / "kept.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["wanted"]) for row in rows] == [
        row["wanted"] for row in results["risks"]["practical"]
    ]
    assert [int(row["answered"]) for row in rows] == [
        row["answered"] for row in results["risks"]["practical"]
    ]


def test_the_price_of_samples_follows_the_risk(run, facts, opened):
    results, _ = facts
    rows = results["rounds"]["rows"]
    risks = [row["wanted"] for row in results["risks"]["practical"]]
    with opened(url(run)) as page:
        for risk in results["settings"]["risks"]:
            move(page, risks.index(risk))
            label = page.locator('figure[data-chart="costs"] svg').last.get_attribute("aria-label")
            for row in (one for one in rows if one["risk"] == risk):
                assert f"{row['answers']:.1f} answers {100 * row['coverage']:.0f} %" in label


def test_the_page_prints(run, opened):
    with opened(url(run)) as page:
        page.emulate_media(media="print")
        assert not page.locator(".controls").first.is_visible()
        assert page.pdf()[:5] == b"%PDF-"


def test_two_runs_on_one_page(run, opened, tmp_path):
    assert main(["report", str(run), str(run), "--out", str(tmp_path / "both.html")]) == 0
    with opened((tmp_path / "both.html").as_uri()) as page:
        assert "0 of 200 queries" in page.inner_text("#count")
        assert page.locator("figure svg[role=img]").count() == 3
        assert serious(page) == []
