"""Debian's Chromium through Playwright; without either the tests are skipped, with the reason."""

import shutil
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    path = shutil.which("chromium")
    if path is None or find_spec("playwright") is None:
        pytest.skip("needs Chromium and Playwright: make test-browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def opened(browser):
    """A page that must log no error, and ask nobody but those it is ``allowed`` to.

    ``expected`` is a text that the browser itself logs, such as the status of a refused request.
    """

    @contextmanager
    def page(url, *, allowed=("file:", "data:", "blob:"), expected=None, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        found = context.new_page()
        problems, left = [], []
        found.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        found.on("pageerror", lambda error: problems.append(str(error)))
        found.on(
            "request", lambda r: None if r.url.startswith(tuple(allowed)) else left.append(r.url)
        )
        found.goto(url)
        found.wait_for_selector("html[data-ready=yes]")
        yield found
        assert [one for one in problems if expected is None or expected not in one] == []
        assert left == []
        context.close()

    return page


def serious(page):
    """What axe calls serious or critical, in words."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:160]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
