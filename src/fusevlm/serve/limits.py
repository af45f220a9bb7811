"""How much a server takes on: every limit, its bounds and its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fusevlm import checks
from fusevlm.checks import POSITIVE, Number, Whole

# of one request, whatever the server
QUESTION = 4000  # characters
PICTURES = 4
TURNS = 32  # of a conversation
SAMPLES = 200  # brought along, or drawn
TOKENS = 4096  # log-probabilities of one sample
COLUMNS = 64  # named numbers beside samples
FIELDS = 64  # of an object, known or not
SEEDS = 2**31 - 1


@dataclass(frozen=True)
class Limits:
    """What bounds the server's memory and its clients' patience."""

    batch: Annotated[int, Whole(1)] = 16  # queries that are asked together
    linger: Annotated[float, Number(0.0)] = 0.005  # seconds the first of a batch waits for others
    workers: Annotated[int, Whole(1)] = 1  # batches at a time
    queue: Annotated[int, Whole(1)] = 128  # queries that wait; more are refused
    seconds: Annotated[float, POSITIVE] = 60.0  # until an answer
    body_seconds: Annotated[float, POSITIVE] = 20.0  # until a request has come whole
    idle_seconds: Annotated[float, POSITIVE] = 10.0  # without a header, or without being read
    closing_seconds: Annotated[int, Whole(1)] = 30  # for requests under way when it is to end
    body_bytes: Annotated[int, Whole(1)] = 12_000_000  # of a request
    held_bytes: Annotated[int, Whole(1)] = 256_000_000  # of all requests together
    pixels: Annotated[int, Whole(1)] = 25_000_000  # of a picture
    known: Annotated[int, Whole(1)] = 1000  # last answers, for feedback and other risks
    known_bytes: Annotated[int, Whole(1)] = 128_000_000  # of all of them together

    def __post_init__(self) -> None:
        checks.options(self)
