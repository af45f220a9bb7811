"""Notebooks as pages of the site: a hook of mkdocs. Outputs are shown as they are stored.

Nothing is executed and nothing is loaded from elsewhere: code becomes code, HTML stays HTML, text
becomes text and pictures are part of the page.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ENDING = ".ipynb"


class Notebook(File):
    """A notebook that is a page, not something to download."""

    def is_documentation_page(self) -> bool:
        """It is one."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make pages of the notebooks among the files."""
    for file in [file for file in files if file.src_uri.endswith(ENDING)]:
        files.remove(file)
        files.append(
            Notebook(
                file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls,
                inclusion=file.inclusion,
            )
        )  # fmt: skip
    return files


def on_page_read_source(page: Page, config: MkDocsConfig) -> str | None:
    """The Markdown of a notebook; other pages read themselves."""
    if not page.file.src_uri.endswith(ENDING):
        return None
    return markdown(json.loads(page.file.content_string))


def markdown(notebook: dict[str, Any]) -> str:
    """All cells, with what they gave."""
    return "\n\n".join(block for cell in notebook["cells"] for block in blocks(cell))


def blocks(cell: dict[str, Any]) -> list[str]:
    """A cell, and each of its outputs."""
    text = joined(cell["source"]).strip()
    if cell["cell_type"] != "code":
        return [text]
    shown = [output(one) for one in cell["outputs"]]
    return [
        f"```python\n{text}\n```",
        *[f'<div class="output">{one}</div>' for one in shown if one],
    ]


def output(given: dict[str, Any]) -> str:
    """An output as HTML on one line, the richest form of it that there is."""
    if given["output_type"] == "stream":
        return preformatted(joined(given["text"]))
    data = {kind: joined(value) for kind, value in given.get("data", {}).items()}
    if "text/html" in data:
        return data["text/html"].replace("\n", " ")
    if "image/png" in data:
        picture = data["image/png"].replace("\n", "")
        return f'<img alt="{escape(data["text/plain"])}" src="data:image/png;base64,{picture}">'
    return preformatted(data.get("text/plain", ""))


def preformatted(text: str) -> str:
    """Text as it was printed; empty lines would end the HTML."""
    return f"<pre>{escape(text.rstrip())}</pre>".replace("\n", "&#10;") if text.strip() else ""


def joined(text: str | list[str]) -> str:
    """Notebooks keep texts as lists of lines, or whole."""
    return text if isinstance(text, str) else "".join(text)
