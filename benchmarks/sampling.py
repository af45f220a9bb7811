"""50 samples of one prompt: shared prefix against the repeated cache and against ``generate``.

Random weights of real architectures; every answer runs to the token limit, so all do the same work.
``generate`` is run in its plain form: without the hidden states and log-probabilities ours has.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.timing import Row, clock
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.models.temperatures import constant
from fusevlm.testing import tiny
from fusevlm.types import Query

N, NEW, PROMPT = 50, 16, 600
SMALL = {
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 8000, "head_dim": 32,
}  # fmt: skip
LARGE = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": 32000,
}  # fmt: skip


def run() -> list[Row]:
    rows = compare("llava", LARGE, generate_target=12.0, repeated_target=3.0, memory_target=12.0)
    for family in tiny.FAMILIES:
        rows += compare(family, SMALL, generate_target=4.0)
    return rows


def compare(
    family: str,
    sizes: dict[str, int],
    *,
    generate_target: float,
    repeated_target: float | None = None,
    memory_target: float | None = None,
) -> list[Row]:
    """Seconds and extra memory of the three ways, each in a process of its own."""
    torch.set_num_threads(1)
    model, processor = endless(family, sizes)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    query = prompt_of(model, processor)
    ways: dict[str, Callable[[], Any]] = {
        "shared prefix": lambda: ours(model, processor, query, "auto"),
        "repeated cache": lambda: ours(model, processor, query, "repeated_cache"),
        "generate": lambda: generate(model, processor, query),
    }
    cost = {name: measured(way) for name, way in ways.items()}
    seconds, megabytes = cost["shared prefix"]
    label = f"{family} {millions:.0f}M, {N} samples"
    detail = ", ".join(f"{name} {s:.2f} s / {mb:.0f} MB" for name, (s, mb) in cost.items())
    rows = []
    for other, target in (("generate", generate_target), ("repeated cache", repeated_target)):
        ratio = cost[other][0] / seconds
        rows.append(
            Row(f"{label}: shared prefix against {other}", ratio, "x faster", target, detail)
        )
    ratio = cost["generate"][1] / megabytes
    name = f"{label}: extra memory of generate against shared prefix"
    return [*rows, Row(name, ratio, "x as much", memory_target, "")]


def endless(family: str, sizes: dict[str, int]) -> tuple[Any, Any]:
    """A random model that never ends an answer by itself."""
    model, processor = tiny.build(family, **sizes)
    with torch.no_grad():
        model.lm_head.bias[processor.tokenizer.eos_token_id] = -1e4
    return model, processor


def prompt_of(model: Any, processor: Any) -> Query:
    """A question long enough for a prompt of about 600 tokens, image included."""
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8))
    short = (
        HuggingFace(model, processor).prepare(Query("q", "red", [picture]))["input_ids"].shape[1]
    )
    return Query("q", "red " * (PROMPT - short + 1), [picture])


def ours(model: Any, processor: Any, query: Query, path: str) -> None:
    loaded = HuggingFace(model, processor, decoding=Decoding(max_new_tokens=NEW, path=path))
    (found,) = loaded.sample([query], N, constant(N), seed=0)
    assert found.error is None, found.error
    assert all(len(tokens) == NEW for tokens in found.token_ids)


def generate(model: Any, processor: Any, query: Query) -> None:
    model.set_attn_implementation("sdpa")
    inputs = HuggingFace(model, processor, decoding=Decoding(path="repeated_cache")).prepare(query)
    with torch.inference_mode():
        out = model.generate(
            **inputs, do_sample=True, num_return_sequences=N, max_new_tokens=NEW,
            min_new_tokens=NEW, pad_token_id=0,
        )  # fmt: skip
    assert out.shape == (N, inputs["input_ids"].shape[1] + NEW)


def measured(way: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and megabytes of peak memory beyond what the process had at the start."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def child() -> None:
        before = resident()
        with clock() as timed:
            way()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        there.send((timed.seconds, max(peak - before, 0.1)))

    process = context.Process(target=child)
    process.start()
    found: tuple[float, float] = here.recv()
    process.join()
    return found


def resident() -> float:
    """Megabytes this process holds now."""
    with open("/proc/self/statm") as handle:
        return int(handle.read().split()[1]) * resource.getpagesize() / 2**20
