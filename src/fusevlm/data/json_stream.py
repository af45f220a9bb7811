"""One list of a large JSON file, record by record, without loading the file."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from fusevlm.errors import ArtefactError

CHUNK = 1 << 16  # characters read at a time; more only while one record is longer
LONGEST_TOKEN = 16  # a number, literal or escape cut by the end of a chunk is shorter
WHITE = " \t\n\r"
_decode = json.JSONDecoder().raw_decode


def must_exist(*paths: str | os.PathLike[str]) -> None:
    """ArtefactError for the first path that is not a file, before anything is read."""
    for path in paths:
        if not os.path.isfile(path):
            raise ArtefactError(f"{path} does not exist or is not a file. Check the path.")


def open_text(path: str | os.PathLike[str]) -> TextIO:
    """A text file, gzipped if its name ends in ``.gz``."""
    source = Path(path)
    try:
        if source.suffix == ".gz":
            return gzip.open(source, "rt", encoding="utf-8-sig", newline="")
        return open(source, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise ArtefactError(f"cannot read {source}: {error}.") from error


def records(path: str | os.PathLike[str], key: str) -> Iterator[tuple[int, Any]]:
    """(number from 1, record) of the list ``key`` in a file that holds one JSON object.

    Memory is one chunk and one record. The file is read to its end, so damage behind the list is
    found too; what is wrong is named by byte (of the unpacked file) and record.
    """
    with open_text(path) as stream:
        scanner = _Scanner(stream, path)
        keys: list[Any] = []
        scanner.expect("{", "an object")
        while scanner.peek() != "}":
            if keys:
                scanner.expect(",", "',' or '}'")
            keys.append(scanner.value())
            scanner.expect(":", "':'")
            if scanner.peek() == "[":
                elements = scanner.elements(str(keys[-1]))
                if keys[-1] == key:
                    yield from elements
                else:
                    for _ in elements:
                        pass
            else:
                scanner.value()
        scanner.expect("}", "'}'")
        if scanner.peek():
            raise scanner.damage("something follows the object")
    if key not in keys:
        raise ArtefactError(
            f"{path} has no list {key!r}; its keys are {', '.join(map(str, keys)) or 'none'}. "
            f"Questions and annotations are separate files: check which one this is."
        )


class _Scanner:
    """A window on the text that grows only while a value does not fit in it."""

    def __init__(self, stream: TextIO, path: str | os.PathLike[str]) -> None:
        self.stream, self.path = stream, path
        self.text, self.at = "", 0
        self.bytes_before = 0  # of the window
        self.ended = False
        self.record = ""

    def elements(self, key: str) -> Iterator[tuple[int, Any]]:
        self.expect("[", "a list")
        number = 0
        while self.peek() != "]":
            if number:
                self.expect(",", "',' or ']'")
                self.peek()
            number += 1
            self.record = f" in record {number} of {key!r}"
            yield number, self.value()
        self.expect("]", "']'")
        self.record = ""

    def peek(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in WHITE:
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def expect(self, character: str, what: str) -> None:
        found = self.peek()
        if found != character:
            raise self.damage(f"expected {what}, found {found or 'the end of the file'!r}")
        self.at += 1

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = _decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended or not _is_cut(error):
                    self.at = error.pos
                    raise self.damage(error.msg) from error
            except (ValueError, RecursionError) as error:  # a number or a nest without end
                raise self.damage(str(error)) from error
            else:
                # a number may go on in the next chunk, and "1e+" is read as 1 until it does
                if end + len("e+") < len(self.text) or self.ended:
                    self.at = end
                    return value
            self.more()

    def more(self) -> None:
        self.bytes_before += len(self.text[: self.at].encode())
        self.text, self.at = self.text[self.at :], 0
        try:
            chunk = self.stream.read(max(CHUNK, len(self.text)))
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise self.damage(f"the file is damaged ({error})") from error
        self.text += chunk
        self.ended = not chunk

    def damage(self, what: str) -> ArtefactError:
        byte = self.bytes_before + len(self.text[: self.at].encode())
        return ArtefactError(
            f"{self.path}: at byte {byte}{self.record}: {what}. Fetch or unpack the file again."
        )


def _is_cut(error: json.JSONDecodeError) -> bool:
    """Whether the text may merely be cut by the end of the window."""
    if error.msg.startswith("Unterminated string"):
        return True
    return len(error.doc[error.pos :].strip(WHITE)) < LONGEST_TOKEN
