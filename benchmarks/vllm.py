"""vLLM on a CPU against Hugging Face: ``make bench-vllm ARGS=speed`` and ``ARGS=demo``.

``speed``: 50 samples of one 600-token prompt with a picture, random weights of LLaVA's architecture
that never end an answer, one thread, each way in a process of its own: seconds and CPU seconds a
query, tokens per second, peak memory. ``vllm alone`` is its own sampler, without states.
``demo``: the queries of ``make demo`` sampled by both, and every method's AUROC.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

N, NEW, WARM, QUERIES = 50, 16, 1, 4
LARGE = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 12, "max_position_embeddings": 2048,
}  # fmt: skip
WORDS = 578  # of the question: 600 tokens with the picture and the template, or one more block
WAYS = {
    "fusevlm, Hugging Face": {},
    "fusevlm, batches of 4": {"batch": 4},
    "fusevlm, vLLM": {"vllm": True},
    "fusevlm, vLLM, batches of 4": {"vllm": True, "batch": 4},
    "vLLM alone, block 32": {"alone": True, "block_size": 32, "enforce_eager": True},
    "vLLM alone, block 128 (its default)": {"alone": True, "enforce_eager": True},
    "vLLM alone, block 32, compiled": {"alone": True, "block_size": 32},
    "vLLM alone, block 32, batches of 4": {
        "alone": True, "block_size": 32, "enforce_eager": True, "batch": 4,
    },
}  # fmt: skip


def queries(words: int) -> list[Any]:
    from PIL import Image

    from fusevlm.types import Query

    rng = np.random.default_rng(0)
    return [
        Query(
            f"q{k}", f"{'blue ' if k % 2 else 'green '}{k % 10} " + "red " * words,
            [Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))],
        )
        for k in range(WARM + QUERIES)
    ]  # fmt: skip


def one(folder: str, way: str, words: int) -> dict[str, float]:
    """Measure one way in this process."""
    options = dict(WAYS[way])
    asked = queries(words)
    batch = int(options.pop("batch", 1))
    sampler = _alone if options.pop("alone", False) else _ours
    sample, length = sampler(folder, asked[0], **options)
    sample(asked[:WARM])
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(WARM, len(asked), batch):
        sample(asked[start : start + batch])
    seconds = (time.perf_counter() - wall) / QUERIES
    return {
        "prompt": length,
        "seconds": seconds,
        "cpu": (time.process_time() - cpu) / QUERIES,
        "tokens": N * NEW / seconds,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _ours(folder: str, first: Any, vllm: bool = False) -> tuple[Any, int]:
    from fusevlm.models.protocol import Decoding
    from fusevlm.models.registry import load_model
    from fusevlm.models.temperatures import constant

    source = f"vllm:{folder}" if vllm else folder
    model: Any = load_model(source, Decoding(max_new_tokens=NEW), dtype="float32")

    def sample(asked: list[Any]) -> list[Any]:
        found = list(model.sample(asked, N, constant(N), 0))
        assert all(g.error is None for g in found), found[0].error
        assert all(len(row) == NEW for g in found for row in g.token_ids)
        return found

    return sample, sample([first])[0].prompt_tokens


def _alone(folder: str, first: Any, **options: Any) -> tuple[Any, int]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from fusevlm.models.processors import load_processor
    from fusevlm.models.prompts import Speaker
    from fusevlm.models.protocol import Decoding
    from vllm import LLM, SamplingParams

    speaker = Speaker(load_processor(folder), Decoding(max_new_tokens=NEW), folder)
    engine = LLM(folder, dtype="float32", seed=0, kv_cache_memory_bytes=2 * 10**9, **options)
    settings = SamplingParams(n=N, max_tokens=NEW, logprobs=0, ignore_eos=True)

    def sample(asked: list[Any]) -> list[Any]:
        said = [speaker.say(query) for query in asked]
        prompts = [{"prompt": s.text, "multi_modal_data": {"image": s.images}} for s in said]
        found = engine.generate(prompts, settings, use_tqdm=False)
        assert all(len(o.token_ids) == NEW for one in found for o in one.outputs)
        return found

    return sample, len(sample([first])[0].prompt_token_ids)


def speed(home: Path, repeats: int, only: str) -> None:
    from fusevlm.render.text import layout
    from fusevlm.testing import tiny

    folder = tiny.save("llava", home / "llava-large", end=-1e3, **LARGE)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
    rows = []
    for words in (WORDS, WORDS + 9):
        for way in [one for one in WAYS if only in one]:
            found = []
            for _ in range(repeats):
                command = [sys.executable, "-m", "benchmarks.vllm", "one", folder, way, str(words)]
                made = subprocess.run(command, env=env, capture_output=True, text=True)
                if made.returncode:
                    print(f"{way}: failed: {made.stderr.strip().splitlines()[-1]}", flush=True)
                    break
                found.append(json.loads(made.stdout.strip().splitlines()[-1]))
            if found:
                best = min(found, key=lambda one: one["seconds"])
                rows.append(
                    (way, f"{best['prompt']:.0f}", f"{best['seconds']:.2f}", f"{best['cpu']:.2f}",
                     f"{best['tokens']:.0f}", f"{best['memory']:.0f}")
                )  # fmt: skip
                print(*rows[-1], flush=True)
    header = ("way", "prompt", "s/query", "CPU s/query", "tokens/s", "peak MB")
    print(layout(header, rows))


def demo(home: Path, limit: int) -> None:
    from fusevlm.cli import main
    from fusevlm.pipeline.evaluate import read_results
    from fusevlm.store.generations import read_generations

    runs = {}
    for name, model in (("huggingface", "embedded"), ("vllm", "vllm:embedded")):
        run = home / f"demo-{name}"
        words = ["run", "configs/demo.toml", "--run", str(run), "--quiet",
                 "--set", f"sample.model={model}", "--set", "report.figures=[]"]  # fmt: skip
        words += ["--limit", str(limit)] if limit else []
        code = main(words)
        assert code in (0, 3), code
        runs[name] = run
    pairs = list(zip(*(read_generations(run / "sample") for run in runs.values()), strict=True))
    said = [a.samples.answer == b.samples.answer for a, b in pairs if a.samples and b.samples]
    texts = [a.samples.texts == b.samples.texts for a, b in pairs if a.samples and b.samples]
    print(f"{len(pairs)} queries: the same greedy answer {np.mean(said):.4%}, "
          f"the same samples {np.mean(texts):.4%}")  # fmt: skip
    tables = [read_results(run)["slices"][0]["methods"] for run in runs.values()]
    for method in tables[0]:
        one, two = (table[method]["auroc"]["estimate"] for table in tables)
        print(f"{method:<16} AUROC {one:.4f} {two:.4f}  {two - one:+.4f}")


def main_() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "demo", "one"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-vllm"))
    parser.add_argument("--limit", type=int, default=0, help="queries of each split (all)")
    parser.add_argument("--only", default="", help="ways with this in their names")
    parser.add_argument("--repeats", type=int, default=2, help="the best of so many (2)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "one":
        print(json.dumps(one(args.rest[0], args.rest[1], int(args.rest[2]))))
    elif args.what == "speed":
        speed(args.out, args.repeats, args.only)
    else:
        demo(args.out, args.limit)


if __name__ == "__main__":
    main_()
