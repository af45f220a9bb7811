"""The live page in a real browser, before the embedded model, against the server's own numbers."""

import io
import json
import shutil
import threading

import pytest
from tests.browser.conftest import FLAGS, serious
from tests.serve.live import CLEAN, QUESTION, SHAPE, Gate, data_url, served

import fusevlm
from fusevlm.serve.feedback import Feedback
from fusevlm.serve.page import RISKS, examples

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def assistant(browser):
    return fusevlm.load("embedded")


@pytest.fixture(scope="module")
def live(assistant, tmp_path_factory):
    """(client, gate, feedback table) of a server whose answers can be held back."""
    gate = Gate(assistant)
    table = tmp_path_factory.mktemp("live") / "told.jsonl"
    with served(gate, feedback=Feedback(table)) as (client, _):
        yield client, gate, table


@pytest.fixture
def page(live, opened):
    url = str(live[0].base_url)
    with opened(url, allowed=(url, "data:", "blob:")) as found:
        yield found


def wait(page):
    page.wait_for_selector("#verdict:not([hidden])", timeout=30_000)


def upload(page, data=SHAPE):
    page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": data})
    page.wait_for_selector("#shown:not([hidden])")


def asked(client, **body):
    return client.post("/v1/ask", json={"question": QUESTION, "image": CLEAN, **body}).json()


def test_upload_ask_and_read_the_answer(live, page):
    upload(page)
    page.fill("#question", QUESTION)
    page.click("#ask")
    wait(page)
    found = asked(live[0])
    text = page.inner_text("#verdict")
    assert found["answer"] in text
    assert found["why"] in text
    assert f"P(wrong) {found['p_wrong']:.2f}" in text
    assert "At risk 5 % it answers" in text
    assert "I don't know" not in text
    for name, value in found["bars"].items():
        assert name in page.inner_text("#bars")
        assert f"{round(100 * value)} %" in page.inner_text("#bars")
    assert page.inner_text("#count") == "(20)"
    assert page.locator("#near li").count() == len(found["neighbours"])
    assert page.inner_text("#trouble") == ""
    assert serious(page) == []


def test_samples_arrive_one_after_the_other(live, page):
    """The page shows 2, 4, 8, … samples while the others are still being drawn."""
    page.evaluate(
        """() => { window.seen = [];
        new MutationObserver(() => window.seen.push(document.getElementById("count").textContent))
          .observe(document.getElementById("count"), {childList: true, characterData: true,
                                                      subtree: true}); }"""
    )
    upload(page)
    page.fill("#question", QUESTION)
    page.click("#ask")
    wait(page)
    seen = [text for text in page.evaluate("window.seen") if text]
    assert list(dict.fromkeys(seen)) == ["(2)", "(4)", "(8)", "(12)", "(16)", "(20)"]


def test_the_examples_do_what_they_say(live, page):
    for one in examples():
        page.get_by_role("button", name=one.name, exact=True).click()
        page.wait_for_selector("#verdict[hidden]", state="attached")
        wait(page)
        found = asked(live[0], question=one.question, image=one.image)
        text = page.inner_text("#verdict")
        assert found["why"] in text
        assert (
            ("I don't know." in text) == (found["decision"] == "abstain") == (one.name != "Clean")
        )
        assert page.input_value("#question") == one.question
        assert page.get_attribute("#shown", "alt") == one.alt
    assert "the embedded model is small" in page.inner_text("#notes") or found["notes"] == []


def move(page, at):
    page.evaluate(
        """(at) => { const s = document.getElementById("risk"); s.value = at;
        s.dispatchEvent(new Event("input")); }""",
        at,
    )


def test_the_slider_decides_at_every_risk_as_the_server_would(live, page):
    """Nothing is sampled again, and somewhere the blurred picture is answered."""
    client, gate, _ = live
    blurred = examples()[1]
    page.get_by_role("button", name=blurred.name, exact=True).click()
    wait(page)
    gate.batches.clear()
    decisions = []
    for at, risk in enumerate(RISKS):
        move(page, at)
        said = f"At risk {100 * risk:g} %"
        page.wait_for_function(
            "(said) => document.getElementById('rule').textContent.startsWith(said)", arg=said
        )
        decisions.append("abstain" if "I don't know." in page.inner_text("#verdict") else "answer")
    assert gate.batches == []
    body = {"question": blurred.question, "image": blurred.image}
    assert decisions == [asked(client, **body, risk=risk)["decision"] for risk in RISKS]
    assert set(decisions) == {"answer", "abstain"}


def test_by_keyboard_alone(live, page):
    """Tab to everything, type, ask with Enter, move the risk with the arrows."""
    upload(page)
    page.focus("#question")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    wait(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "risk"
    before = page.inner_text("#risk-value")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#risk-value") != before
    reached = []
    page.focus("#example-buttons button")
    for _ in range(14):
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
        page.keyboard.press("Tab")
    assert {"file", "remove", "question", "risk", "rounds", "ask"} <= set(reached)
    outline = page.evaluate(
        """() => { const b = document.getElementById("ask"); b.focus({focusVisible: true});
        return getComputedStyle(b).outlineStyle; }"""
    )
    assert outline != "none"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_and_in_the_dark(live, opened, theme):
    url = str(live[0].base_url)
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": theme}
    with opened(url, allowed=(url, "data:", "blob:"), **options) as page:
        page.get_by_role("button", name="Unseen phrasing").click()
        wait(page)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 1
        assert serious(page) == []
        small = page.evaluate(
            """() => [...document.querySelectorAll("button")].filter((b) => b.offsetParent &&
            b.getBoundingClientRect().height < 32).map((b) => b.textContent)"""
        )
        assert small == []  # large enough for a thumb


def test_a_picture_is_dropped_and_removed(live, page):
    page.evaluate(
        """(bytes) => { const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
        const drop = document.getElementById("drop");
        for (const name of ["dragover", "drop"])
          drop.dispatchEvent(new DragEvent(name, {dataTransfer: data, cancelable: true})); }""",
        list(SHAPE),
    )
    page.wait_for_selector("#shown:not([hidden])")
    assert page.get_attribute("#shown", "src") == data_url(SHAPE)
    assert page.get_attribute("#shown", "alt") == "your picture dropped.png"
    page.click("#remove")
    assert not page.is_visible("#shown")


def test_what_goes_wrong_is_said(live, page):
    page.click("#ask")
    assert page.inner_text("#trouble") == "Type a question first."
    assert page.evaluate("document.activeElement.id") == "question"
    page.set_input_files("#file", {"name": "x.txt", "mimeType": "text/plain", "buffer": b"x"})
    page.wait_for_function(
        "() => document.getElementById('trouble').textContent.includes('not a picture')"
    )


def test_a_refused_picture_says_why(live, opened):
    url = str(live[0].base_url)
    with opened(url, allowed=(url, "data:", "blob:"), expected="status of 422") as page:
        upload(page, SHAPE[:30])
        page.fill("#question", QUESTION)
        page.click("#ask")
        page.wait_for_function("() => document.getElementById('trouble').textContent !== ''")
        assert "image" in page.inner_text("#trouble")


def test_stopping_and_asking_again(live, page):
    _, gate, _ = live
    upload(page)
    page.fill("#question", "is it blue?")
    gate.open.clear()
    page.click("#ask")
    page.wait_for_selector("#stop:not([hidden])")
    page.click("#stop")
    page.wait_for_function("() => document.getElementById('trouble').textContent === 'Stopped.'")
    gate.open.set()
    page.click("#ask")
    wait(page)
    assert not page.is_visible("#stop")


def test_as_few_samples_as_needed(live, page):
    upload(page)
    page.fill("#question", QUESTION)
    page.check("#rounds")
    page.click("#ask")
    wait(page)
    found = asked(live[0], samples="as needed")
    shown = sum(found["samples"].values())
    assert page.inner_text("#count") == (f"({shown})" if shown else "")
    move(page, 0)  # another risk is another question: samples were drawn for the first
    page.wait_for_function(
        "() => document.getElementById('rule').textContent.startsWith('At risk 1 %')"
    )


def test_feedback_is_kept(live, page):
    page.get_by_role("button", name="Clean").click()
    wait(page)
    page.locator("#feedback button", has_text="Yes").click()
    page.wait_for_function("() => document.getElementById('thanks').textContent !== ''")
    assert page.inner_text("#thanks") == "Kept, thank you."
    row = json.loads(live[2].read_text().splitlines()[-1])
    assert (row["answer"], row["wrong"]) == ("circle", 0)


def test_a_token_is_asked_for_and_sent(assistant, opened):
    with served(assistant, token=TOKEN) as (client, _):
        url = str(client.base_url)
        with opened(url, allowed=(url, "data:", "blob:"), expected="status of 401") as page:
            page.get_by_role("button", name="Clean").click()
            page.wait_for_selector("#token-row:not([hidden])")
            assert "no valid token" in page.inner_text("#trouble")
            page.fill("#token", TOKEN)
            page.click("#ask")
            wait(page)
            assert "circle" in page.inner_text("#verdict")
            assert page.evaluate("JSON.stringify([localStorage, sessionStorage])") == "[{},{}]"


def test_a_name_and_an_answer_are_text(assistant, opened):
    name = "<img src=x onerror=alert(1)>"
    with served(assistant, name=name) as (client, _):
        url = str(client.base_url)
        with opened(url, allowed=(url, "data:", "blob:")) as page:
            page.on("dialog", lambda dialog: pytest.fail("a script ran"))
            assert page.inner_text("h1") == f"Ask {name}"
            page.fill("#question", "what <b>is</b> it? <script>alert(1)</script>")
            upload(page)
            page.click("#ask")
            wait(page)
            assert page.locator("main b script, main img[onerror]").count() == 0


def pictures(folder):
    """Screenshots for the documentation: ``python -m tests.browser.test_live_page docs/images``."""
    from pathlib import Path

    from PIL import Image
    from playwright.sync_api import sync_playwright

    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    looks = {"live": ("light", 1080, 900, "Blurred"), "live-phone": ("dark", 390, 800, "Clean")}
    with served(fusevlm.load("embedded")) as (client, _), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, (theme, width, height, example) in looks.items():
            size = {"width": width, "height": height}
            page = browser.new_context(viewport=size, color_scheme=theme).new_page()
            page.goto(str(client.base_url))
            page.wait_for_selector("html[data-ready=yes]")
            page.get_by_role("button", name=example).click()
            wait(page)
            threading.Event().wait(0.5)  # until the bars have grown
            shot = Image.open(io.BytesIO(page.screenshot(full_page=True)))
            shot.quantize(96).save(home / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    import sys

    pictures(sys.argv[1])
