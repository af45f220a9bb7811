"""The pictures of the documentation, from a finished demo: ``make pictures``.

``python -m tests.browser.pictures RUN OUT`` takes them in Chromium: the page of the run, its
gallery, and two questions as ``fusevlm ask`` answers them.
"""

import argparse
import base64
import io
import shutil
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.browser.conftest import FLAGS

import fusevlm
from fusevlm.data.images import load_image
from fusevlm.pipeline.data import TEST, read_asked
from fusevlm.pipeline.evaluate import read_predictions

WIDTH = 1200
TERMINAL = """<style>
body { margin: 0; padding: 20px; width: 1130px; background: #fff; font: 14px/1.45 ui-monospace,
  "DejaVu Sans Mono", monospace; color: #16181d }
section { display: flex; gap: 18px; border: 1px solid #d5d9e0; border-radius: 8px; padding: 16px;
  margin-bottom: 16px }
img { width: 128px; height: 128px; image-rendering: pixelated; border-radius: 4px; flex: none }
h2 { font: inherit; margin: 0 0 .6em; opacity: .65 }
</style>"""


def two(run):
    """A query that is answered, and one that is not: a picture spoilt by occlusion."""
    table = read_predictions(run)
    answered = dict(
        zip(table["query_id"], table["practical.answered_guaranteed"], strict=True)
    )  # fmt: skip
    plain, spoilt = [], []
    for query in read_asked(run, (TEST,)):
        facts = query.metadata
        if query.id not in answered or facts["unseen_phrasing"]:
            continue
        if facts["severity"] == 0 and answered[query.id] and "color" in query.question:
            plain.append(query)
        if facts["corruption"] == "occlusion" and facts["severity"] == 5:
            spoilt += [] if answered[query.id] else [query]
    return plain[0], spoilt[0]


def asked(run):
    """Both as a page that looks like a terminal."""
    assistant = fusevlm.load(run)
    parts = [TERMINAL]
    for query in two(run):
        picture = load_image(query.images[0]).resize((256, 256), Image.Resampling.NEAREST)
        held = io.BytesIO()
        picture.save(held, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"
        answer = assistant.ask(query.images[0], query.question)
        parts.append(
            f'<section><img src="{url}" alt=""><div><h2>$ fusevlm ask picture.png '
            f'"{query.question}"</h2>{answer._repr_html_()}</div></section>'
        )
    return "".join(parts)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args(arguments)
    terminal = asked(args.run)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 1010})
        begun = time.monotonic()
        page.goto((args.run / "report" / "index.html").resolve().as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        print(f"the page of {args.run} opened in {time.monotonic() - begun:.2f} s")
        page.screenshot(path=args.out / "report.png")
        page.get_by_text("Confident but wrong").click()
        page.locator("#gallery").scroll_into_view_if_needed()
        page.locator("#gallery").evaluate("e => e.scrollIntoView()")
        page.set_viewport_size({"width": WIDTH, "height": 800})
        page.screenshot(path=args.out / "gallery.png")
        page.set_viewport_size({"width": WIDTH - 30, "height": 600})
        page.set_content(terminal)
        page.screenshot(path=args.out / "ask.png", full_page=True)
        browser.close()
    for name in ("report", "gallery", "ask"):  # few colours: a third of the size
        path = args.out / f"{name}.png"
        small = (
            Image.open(path)
            .convert("RGB")
            .quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        )
        small.save(path, optimize=True)
        print(path, f"{path.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
